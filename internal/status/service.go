package status

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/roce"
)

// patienceOfMembers is how long a snapshot waits for the reports of programs.
const patienceOfMembers = time.Second

// Service is the part of *service.Server that a Collector uses.
type Service interface {
	Path() string
	Reports(timeout time.Duration) []service.Report
	SetStatus(f func(uid uint32, privileged bool) []byte)
}

// Serve makes the snapshots of k contain the programs that have joined s, and s answer requests for
// its status with snapshots. Users see only their own programs, unless they are privileged.
func (k *Collector) Serve(s Service) {
	k.mu.Lock()
	k.c.Socket = s.Path()
	k.c.Members = func() (list []Report) {
		for _, r := range s.Reports(patienceOfMembers) {
			list = append(list, Report(r))
		}
		return list
	}
	k.made = time.Time{}
	k.mu.Unlock()
	s.SetStatus(func(uid uint32, privileged bool) []byte {
		if privileged {
			return k.text(everybody)
		}
		return k.text(int(uid))
	})
}

// Read returns the snapshot of the service whose socket is at a path.
func Read(ctx context.Context, path string) (*Snapshot, error) {
	b, err := service.Status(ctx, path)
	if err != nil {
		return nil, err
	}
	s := new(Snapshot)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("the node service at %s sends a status that cannot be read: %w", path,
			err)
	}
	s.clean()
	return s, nil
}

// clean makes all text of a snapshot of another process printable.
func (s *Snapshot) clean() {
	d := &s.Device
	for _, text := range []*string{&s.Version, &s.Socket, &d.Name, &d.Datapath, &d.Note, &d.Port,
		&d.PortReason, &d.Service, &d.MAC} {
		*text = printable(*text, maxText)
	}
	for i := range d.Addresses {
		a := &d.Addresses[i]
		a.Addr = a.Addr.WithZone("") // which may be any text
		a.Kind = roce.GIDKind(printable(string(a.Kind), maxText))
	}
	for i := range s.Programs {
		p := &s.Programs[i]
		p.Name, p.Error = printable(p.Name, maxName), printable(p.Error, maxText)
		maps.DeleteFunc(p.Counters, func(name string, _ uint64) bool {
			return printable(name, maxText) != name // a newer gorxe may have more counters
		})
		for j := range p.QPs {
			q := &p.QPs[j]
			q.Type, q.State = word(q.Type), word(q.State)
		}
	}
}

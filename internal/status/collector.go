package status

import (
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/roce"
)

// MaxAge is how long Collector.Snapshot returns the same snapshot.
const MaxAge = 500 * time.Millisecond

// Config is the configuration of a Collector.
type Config struct {
	Device  *roce.Device
	Name    string // of this program
	Version string // of gorxe
	Socket  string // of the service, if there is one

	// Members returns the reports of the programs that have joined the service; nil: there is no
	// service. It must not take long.
	Members func() []Report

	now func() time.Time // for tests
}

// Collector makes snapshots. It is safe for concurrent use.
type Collector struct {
	c       Config
	started time.Time

	mu   sync.Mutex
	last *Snapshot
	made time.Time // when last was complete; the zero Time: it must not be used again

	texts struct { // see text
		sync.Mutex
		of   *Snapshot
		list map[int][]byte
	}
}

// NewCollector returns a collector and makes the first snapshot, so that the next one has rates.
func NewCollector(c Config) *Collector {
	if c.now == nil {
		c.now = time.Now
	}
	k := &Collector{c: c, started: c.now()}
	k.Snapshot()
	return k
}

// Snapshot returns the current state, or the last snapshot if that was completed less than MaxAge
// ago. Callers must not change it. Rates are those since the snapshot before.
func (k *Collector) Snapshot() *Snapshot {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.c.now()
	if k.last != nil && now.Sub(k.made) < MaxAge {
		return k.last
	}
	info := k.c.Device.Info()
	s := &Snapshot{Time: now.UTC(), Version: k.c.Version, Started: k.started.UTC(),
		Socket: k.c.Socket, RTTBounds: rttBounds(), Programs: []Program{},
		Device: Device{DeviceInfo: info, MAC: info.MAC.String(), Addresses: k.c.Device.GIDs()}}
	reports := []Report{{PID: os.Getpid(), UID: os.Getuid(), Name: k.c.Name, Joined: k.started,
		Body: inside.Report(k.c.Device, MaxQPs)}}
	if k.c.Members != nil {
		reports = append(reports, k.c.Members()...)
	}
	free := maxAllQPs
	for i := range reports {
		p := reports[i].program(free)
		free -= len(p.QPs)
		s.Programs = append(s.Programs, p)
	}
	s.addRates(k.last)
	// A program that does not answer makes a snapshot take long. Callers that have waited for it
	// share it.
	k.last, k.made = s, k.c.now()
	return s
}

// everybody is the user who sees all programs.
const everybody = -1

// text returns the JSON of the part of the current snapshot that a user may see. It may be as large
// as the reports of all programs, so clients share it.
func (k *Collector) text(uid int) []byte {
	s := k.Snapshot()
	t := &k.texts
	t.Lock()
	defer t.Unlock()
	if t.of != s {
		t.of, t.list = s, map[int][]byte{}
	}
	b, ok := t.list[uid]
	if !ok {
		if uid != everybody {
			s = s.For(uid)
		}
		b, _ = json.Marshal(s) // no value of a snapshot causes an error
		t.list[uid] = b
	}
	return b
}

// addRates computes the rates of s from the snapshot before, if there is one.
func (s *Snapshot) addRates(before *Snapshot) {
	if before == nil {
		return
	}
	seconds := s.Time.Sub(before.Time).Seconds()
	if seconds <= 0 {
		return
	}
	old := map[uint8]*Program{}
	for i := range before.Programs {
		old[before.Programs[i].Slot] = &before.Programs[i]
	}
	for i := range s.Programs {
		p := &s.Programs[i]
		o := old[p.Slot]
		// Slots are used again by other programs.
		if o == nil || o.PID != p.PID || !o.Joined.Equal(p.Joined) || o.Error+p.Error != "" {
			continue
		}
		rate := func(name string) float64 {
			return perSecond(o.Counters[name], p.Counters[name], seconds)
		}
		p.Rates = &Rates{SentBytes: rate("sent_bytes"), RcvdBytes: rate("rcvd_bytes"),
			SentPkts: rate("sent_pkts"), RcvdPkts: rate("rcvd_pkts"),
			Retransmits: rate("retransmits"), Completions: rate("completions")}
		addQPRates(o.QPs, p.QPs, seconds)
	}
}

func addQPRates(before, now []QP, seconds float64) {
	old := map[roce.QPN]*QP{}
	for i := range before {
		old[before[i].QPN] = &before[i]
	}
	for i := range now {
		q := &now[i]
		if o := old[q.QPN]; o != nil {
			q.Rates = &QPRates{Requested: perSecond(o.Requested, q.Requested, seconds),
				Accepted:    perSecond(o.Accepted, q.Accepted, seconds),
				Retransmits: perSecond(o.Retransmits, q.Retransmits, seconds),
				SentBytes:   perSecond(o.SentBytes, q.SentBytes, seconds),
				RcvdBytes:   perSecond(o.RcvdBytes, q.RcvdBytes, seconds)}
		}
	}
}

// perSecond returns the rate of a counter that has grown from a to b. A counter that is smaller
// than before was reset.
func perSecond(a, b uint64, seconds float64) float64 {
	if b < a {
		a = 0
	}
	return float64(b-a) / seconds
}

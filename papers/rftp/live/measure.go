package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/papers/kit"
)

// sample is the result of one measurement.
type sample struct {
	rate float64 // in the unit of the figure
	cpu  float64 // CPU seconds of both sides per 10^9 bytes
}

// measure measures one tool of a figure.
func (b *bench) measure(ctx context.Context, f *figure, tool string) (s sample, err error) {
	t := &task{figure: f, from: b.hosts[0], to: b.hosts[1], size: b.Size}
	if f.kind != memory {
		dir, err := os.MkdirTemp(b.places[f.place], "dst")
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		t.src, t.dst, t.size = b.sources[f.source()].path, dir, b.sources[f.source()].bytes
		if err := syncDir(dir); err != nil { // what the previous measurement left
			return s, err
		}
	}
	for _, h := range b.hosts {
		err := h.do(func() error { return kit.SetOffload(h.end.Iface, tool != toolGridFTPNoTSO) })
		if err != nil {
			return s, err
		}
	}
	r, err := b.run(tool, t)
	if err != nil {
		return s, err
	}
	m, err := b.time(ctx, &r, t)
	if err != nil {
		return s, err
	}
	if f.kind != memory {
		if err := compare(t.src, filepath.Join(t.dst, filepath.Base(t.src))); err != nil {
			return s, fmt.Errorf("the copy differs: %w", err)
		}
	}
	s.rate = float64(m.Bytes) * 8 / float64(m.Took.Nanoseconds())
	if f.kind == smallTree {
		s.rate = float64(b.Files) / m.Took.Seconds()
	}
	s.cpu = m.CPU.Seconds() / (float64(m.Bytes) / 1e9)
	return s, nil
}

// time runs a tool.
func (b *bench) time(ctx context.Context, r *run, t *task) (m result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before := b.softirqs.Time()
	server, err := t.to.start(ctx, r.server)
	if err != nil {
		return m, err
	}
	defer func() {
		cancel()
		<-server.done
	}()
	if err := r.ready(ctx, server); err != nil {
		return m, err
	}
	begin := time.Now()
	client, err := t.from.start(ctx, r.client)
	if err != nil {
		return m, err
	}
	if err := client.wait(ctx); err != nil {
		cancel()
		return m, errors.Join(err, server.wait(ctx))
	}
	if t.kind != memory {
		if err := syncDir(t.dst); err != nil {
			return m, err
		}
	}
	m = result{Bytes: t.size, Took: time.Since(begin)}
	if r.daemon {
		err = server.end(ctx)
	} else {
		err = server.wait(ctx)
	}
	if err != nil {
		return m, err
	}
	m.CPU = client.cpu() + server.cpu()
	if r.parse != nil {
		if m, err = r.both(client, server); err != nil {
			return m, err
		}
	}
	m.CPU += b.softirqs.Time() - before
	return m, nil
}

// both returns what the client has measured, with the CPU time of both sides.
func (r *run) both(client, server *process) (m result, err error) {
	if m, err = r.parse(client.out.String()); err != nil {
		return m, err
	}
	if m.CPU == 0 { // of whole processes
		m.CPU = client.cpu() + server.cpu()
		return m, nil
	}
	lines := strings.Split(strings.TrimSpace(server.out.String()), "\n")
	peer, err := r.parse(lines[len(lines)-1])
	if err == nil && peer.Bytes != m.Bytes {
		err = fmt.Errorf("the receiver got %d of %d bytes", peer.Bytes, m.Bytes)
	}
	m.CPU += peer.CPU
	return m, err
}

// syncDir writes everything to disk that is on the file system of dir.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("write %s to disk: %w", dir, err)
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gorxe/gorxe/interop/guest"
	"github.com/gorxe/gorxe/interop/lab"
)

// trial is one run of one side.
type trial struct {
	messages int
	value    float64 // in the figure's unit
	rate     float64 // messages per second; 0 for a latency run
	p99      float64
	// seconds of the host for both guests, from the server's start to the end of both programs
	cpu      float64
	datapath string
}

// patience bounds what takes a moment on an idle host: a command in a guest, a program's start and
// end.
const patience = 30 * time.Second

// sh runs a short script in a guest.
func sh(ctx context.Context, g *lab.Guest, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p, err := g.Start("sh", "-c", script)
	if err != nil {
		return "", err
	}
	r, err := p.Wait(ctx)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", script, err)
	}
	return r.Stdout, nil
}

// busy returns the CPU seconds that both guests have cost the host.
func (c *comparison) busy() (sum float64, err error) {
	for _, g := range []*lab.Guest{c.server, c.client} {
		d, err := g.CPUTime()
		if err != nil {
			return 0, err
		}
		sum += d.Seconds()
	}
	return sum, nil
}

// try makes one run of n messages.
func (c *comparison) try(ctx context.Context, s *side, f *figure, n int) (trial, error) {
	ctx, cancel := context.WithTimeout(ctx, oneTrialMax)
	defer cancel()
	before, err := c.busy()
	if err != nil {
		return trial{}, err
	}
	out, err := c.both(ctx, s, f, n)
	if err != nil {
		return trial{}, fmt.Errorf("%s with %s: %w", f.name, s.name, err)
	}
	r, err := s.parse(f, out)
	if err != nil {
		return trial{}, fmt.Errorf("%w\n%s", err, out)
	}
	if want := pathMTU(c.o.mtu); r.mtu != 0 && r.mtu != want {
		return trial{}, fmt.Errorf("%s with %s ran at path MTU %d instead of %d", f.name, s.name,
			r.mtu, want)
	}
	after, err := c.busy()
	return trial{messages: n, value: f.value(&r), rate: r.mpps * 1e6, p99: r.p99,
		cpu: after - before, datapath: r.datapath}, err
}

// both runs server and client and returns the client's output.
func (c *comparison) both(ctx context.Context, s *side, f *figure, n int) (string, error) {
	server, err := c.server.Start(s.argv(f, n, c.o, "")...)
	if err != nil {
		return "", err
	}
	// A server that is left behind would block the next run.
	ended := false
	defer func() {
		if !ended {
			gone, cancel := context.WithCancel(context.Background())
			cancel()
			_, _ = server.Wait(gone) // this kills it
		}
	}()
	if err := c.awaitServer(ctx, server); err != nil {
		return "", err
	}
	client, err := c.client.Start(s.argv(f, n, c.o, c.server.IPv4.String())...)
	if err != nil {
		return "", err
	}
	r, err := client.Wait(ctx)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return "", fmt.Errorf("the client: %w", err)
	}
	closing, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	sr, err := server.Wait(closing)
	ended = true
	if err == nil {
		err = sr.Err()
	}
	if err != nil {
		return "", fmt.Errorf("the server: %w", err)
	}
	return r.Stdout, nil
}

// listening succeeds if a process listens on tcpPort (state 0A) on any address.
var listening = fmt.Sprintf("grep -q ':%04X [0-9A-F]*:0000 0A' /proc/net/tcp /proc/net/tcp6",
	tcpPort)

// awaitServer returns when the server listens.
func (c *comparison) awaitServer(ctx context.Context, server *guest.Process) error {
	loop := fmt.Sprintf("until %s; do sleep 0.1; done", listening)
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-server.Done():
			cancel()
		case <-wait.Done():
		}
	}()
	_, err := sh(wait, c.server, loop)
	if err == nil {
		return nil
	}
	select {
	case <-server.Done():
		r, _ := server.Wait(ctx)
		return fmt.Errorf("the server ended before it listened, with status %d\n%s", r.Status,
			strings.TrimSpace(r.Stdout+r.Stderr))
	default:
		return errors.Join(errors.New("the server does not listen"), err)
	}
}

package programs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gorxe/gorxe/internal/osnet"
)

// test is what a pair of programs measures.
type test struct {
	tool        string // of perftest
	op          string // of gorxe perf
	size, count int    // bytes of a message, and number of messages
	xdp         bool   // with AF_XDP on a veth pair instead of UDP sockets
}

// row is the result of a test.
type row struct {
	Bandwidth float64 `json:"bw_average"` // 2^20 bytes per second
	Rate      float64 `json:"msg_rate"`   // 10^6 messages per second
	Typical   float64 `json:"t_typical"`  // median of half the round trip, microseconds

	calls float64 // that both supervisors have intercepted
}

func gbits(r row) float64       { return r.Bandwidth * mib * 8 / 1e9 }
func messages(r row) float64    { return r.Rate }
func typical(r row) float64     { return r.Typical }
func intercepted(r row) float64 { return r.calls }

// stock measures with a pair of perftest under "gorxe run".
func (t test) stock(of func(row) float64) measurement {
	return func(ctx context.Context, b *bench) (float64, error) {
		r, err := b.stock(ctx, t)
		return of(r), err
	}
}

// own measures with a pair of "gorxe perf".
func (t test) own(of func(row) float64) measurement {
	return func(ctx context.Context, b *bench) (float64, error) {
		r, err := b.own(ctx, t)
		return of(r), err
	}
}

// member measures with a pair of "gorxe perf" whose devices have joined a node service.
func (t test) member(of func(row) float64) measurement {
	return func(ctx context.Context, b *bench) (float64, error) {
		stop, err := b.startService(ctx)
		if err != nil {
			return 0, err
		}
		defer stop()
		one := b.local
		one.dev[1] = one.dev[0]
		r, err := b.perf(ctx, t, &one)
		return of(r), err
	}
}

func (b *bench) stock(ctx context.Context, t test) (r row, err error) {
	port, err := freePort()
	if err != nil {
		return r, err
	}
	l := b.link(t)
	side := func(i int, more ...string) []string {
		return append([]string{"run", "--dev", l.dev[i], "--datapath", l.port, "--socket", "none",
			"--stats", "--", t.tool, "-F", "-x", "0", "-p", port, "-s", strconv.Itoa(t.size),
			"-n", strconv.Itoa(t.count)}, more...)
	}
	server, client, err := b.pair(ctx, l, port, side(0), side(1, l.host))
	if err != nil {
		return r, err
	}
	if r, err = parseRow(client.stdout.Bytes(), t.size); err != nil {
		return r, err
	}
	for _, p := range []*process{server, client} {
		n, err := parseCalls(p.stderr.Bytes())
		if err != nil {
			return r, err
		}
		r.calls += n
	}
	return r, nil
}

func (b *bench) own(ctx context.Context, t test) (r row, err error) {
	return b.perf(ctx, t, b.link(t))
}

// perf runs a pair of "gorxe perf" on a link.
func (b *bench) perf(ctx context.Context, t test, l *link) (r row, err error) {
	port, err := freePort()
	if err != nil {
		return r, err
	}
	server := []string{"perf", t.op, "--dev", l.dev[0], "--datapath", l.port, "-p", port}
	client := []string{"perf", t.op, l.host, "--dev", l.dev[1], "--datapath", l.port, "-p", port,
		"-s", strconv.Itoa(t.size), "-n", strconv.Itoa(t.count), "--json"}
	_, c, err := b.pair(ctx, l, port, server, client)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(c.stdout.Bytes(), &r); err != nil {
		return r, fmt.Errorf("output of %s: %w", c, err)
	}
	return r, nil
}

// process is a run of gorxe.
type process struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

// endTimeout is how long a process may take to end after SIGTERM.
const endTimeout = 5 * time.Second

// command returns a process that ends with ctx. It is in its own process group, so that signals of
// the terminal reach only this process, which ends it.
func (b *bench) command(ctx context.Context, args []string) *process {
	osnet.BeforeStart()
	p := &process{Cmd: exec.CommandContext(ctx, b.self, args...)}
	p.Stdout, p.Cmd.Stderr = &p.stdout, &p.stderr
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.Cancel = func() error { return p.Process.Signal(syscall.SIGTERM) }
	p.WaitDelay = endTimeout
	return p
}

// String returns the command line.
func (p *process) String() string { return "gorxe " + strings.Join(p.Args[1:], " ") }

// wait returns an error with the output if the process has failed.
func (p *process) wait() error {
	err := p.Wait()
	if err == nil {
		return nil
	}
	text := strings.TrimSpace(cmp.Or(p.stderr.String(), p.stdout.String()))
	return fmt.Errorf("%s: %w: %s", p, err, text)
}

// pairTimeout bounds the time of a pair.
const pairTimeout = 2 * time.Minute

// pair runs a server, and a client as soon as the server listens on a TCP port.
func (b *bench) pair(ctx context.Context, l *link, port string, server, client []string) (
	s, c *process, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, pairTimeout)
	defer cancel()
	s, c = b.command(ctx, server), b.command(ctx, client)
	if err := l.do(0, s.Start); err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.wait() }()
	if err := awaitListener(ctx, l, port, ended); err != nil {
		cancel()
		return nil, nil, err
	}
	err = l.do(1, c.Start)
	if err == nil {
		err = c.wait()
	}
	if err != nil {
		cancel()
	}
	return s, c, errors.Join(err, <-ended)
}

// freePort returns a TCP port that is not in use.
func freePort() (string, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// awaitListener returns when a socket listens on a TCP port. It does not connect, because that
// would be the server's client.
func awaitListener(ctx context.Context, l *link, port string, ended <-chan error) error {
	for {
		var found bool
		_ = l.do(0, func() error {
			found = listens(port)
			return nil
		})
		if found {
			return nil
		}
		select {
		case err := <-ended:
			return cmp.Or(err, errors.New("the server ended before the client started"))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// listens reports whether a socket listens on a TCP port in the thread's network namespace.
func listens(port string) bool {
	const listening = "0A" // in the fourth column; the second is the local address
	n, err := strconv.Atoi(port)
	if err != nil {
		return false
	}
	want := fmt.Sprintf(":%04X", n)
	for _, name := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 3 && strings.HasSuffix(f[1], want) && f[3] == listening {
				return true
			}
		}
	}
	return false
}

// parseRow finds the result of perftest in its output.
func parseRow(out []byte, size int) (r row, err error) {
	const bandwidth, latency = 5, 9 // columns
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != strconv.Itoa(size) {
			continue
		}
		var v []float64
		for _, text := range f {
			x, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return r, fmt.Errorf("output of perftest: %w", err)
			}
			v = append(v, x)
		}
		switch len(v) {
		case bandwidth:
			return row{Bandwidth: v[3], Rate: v[4]}, nil
		case latency:
			return row{Typical: v[4]}, nil
		}
	}
	return r, fmt.Errorf("the output of perftest has no row for %d bytes:\n%s", size, out)
}

// parseCalls finds the number of intercepted calls in the output of --stats.
func parseCalls(text []byte) (float64, error) {
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "intercepted_calls" {
			return strconv.ParseFloat(f[1], 64)
		}
	}
	return 0, fmt.Errorf("no counters in the output of --stats:\n%s", text)
}

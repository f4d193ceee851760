package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// Config configures a run. Use DefaultConfig and change what differs.
type Config struct {
	// With Link kit.Veth the run uses kit.Memory if AF_XDP on a veth pair is not available.
	kit.Options

	Ports     []string         // of gorxe on a veth pair, from xdp, udp and auto
	Mode      xdp.Mode         // of the AF_XDP ports
	Transport device.Transport // of gorxe
	// Profile is the beginning of the names of files for CPU profiles of gorxe and of bare frames
	// on a veth pair; "" means none.
	Profile string
}

// DefaultConfig returns the configuration of "gorxe bench" without flags. The speed of a shared
// machine changes within seconds: many short rounds give a more certain median than few long
// ones.
func DefaultConfig() Config {
	return Config{
		Options: kit.Options{Link: kit.Veth, Rounds: 25, Duration: 80 * time.Millisecond},
		Ports:   []string{portXDP, portUDP},
	}
}

// Run measures the figures. It shows its progress on stderr if that is a terminal.
func Run(ctx context.Context, c Config, stderr io.Writer) (r *Report, err error) {
	if err := c.Check("figure", Names(), false); err != nil {
		return nil, err
	}
	if err := kit.Known("port", c.Ports, Ports()); err != nil {
		return nil, err
	}
	b := &bench{Config: c}
	stop, err := b.open(stderr)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if c.CPUs[0] == c.CPUs[1] {
		fmt.Fprintln(stderr,
			"Both sides share one CPU: latencies show the scheduler, not the network.")
	}
	bar := kit.ProgressBar(stderr, b.steps())
	err = b.run(ctx, func(figure, lane string) {
		bar.Describe(figure + " " + lane)
		_ = bar.Add(1)
	})
	_ = bar.Exit()
	if cli.Interrupted(ctx) {
		return nil, cli.ErrInterrupted
	}
	if err != nil {
		return nil, err
	}
	return b.report(), nil
}

// choose returns the figures that the user asked for.
func (b *bench) choose(list []figure) []figure {
	if len(b.Only) == 0 {
		return list
	}
	return slices.DeleteFunc(list, func(g figure) bool { return !slices.Contains(b.Only, g.name) })
}

// open starts the two sides: on a veth pair or, if that is not available, in memory.
func (b *bench) open(stderr io.Writer) (stop func() error, err error) {
	if b.Link == kit.Memory {
		return b.openMemory()
	}
	stop, err = b.openVeth()
	if err == nil || !testbed.Unavailable(err) {
		return stop, err
	}
	why := "AF_XDP is not available"
	if !errors.Is(err, xdp.ErrUnsupported) {
		why = "not root"
	}
	fmt.Fprintf(stderr, "On an in-memory link, without kernel baselines: %s (%s).\n",
		why, strings.Join(strings.Fields(err.Error()), " "))
	return b.openMemory()
}

func (b *bench) openVeth() (stop func() error, err error) {
	pair, err := veth.New(veth.Options{MTU: pairMTU, Offloads: true})
	if err != nil {
		return nil, err
	}
	closers := []func() error{pair.Close}
	stop = func() error {
		var err error
		for _, c := range slices.Backward(closers) {
			err = errors.Join(err, c())
		}
		return err
	}
	port, err := xdp.Open(pair.A.Iface, xdp.Options{Mode: b.Mode, NetNS: pair.A.Fd()})
	if err == nil {
		err = port.Close() // AF_XDP works
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	b.figures = b.choose(figures(b.Ports))
	b.softirqs = kit.FindSoftirqs()
	for i, end := range []*veth.End{&pair.A, &pair.B} {
		o := SideOptions{
			Iface: end.Iface, Addr: end.IPv4.Addr(), CPU: b.CPUs[i], Mode: b.Mode,
			Profile: b.Profile,
		}
		s, err := startProcess(sideNames[i], end, &o)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		b.sides[i] = s
		closers = append(closers, s.close)
	}
	return stop, nil
}

// openMemory starts two sides in this process. For each measurement they get the two ports of a new
// link.
func (b *bench) openMemory() (stop func() error, err error) {
	b.figures = b.choose(memoryFigures())
	const threads = 4 // two of them poll
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), threads))
	var ports *testbed.Ports
	for i := range b.sides {
		b.sides[i] = startLocal(sideNames[i], &environment{
			cpu: b.CPUs[i], cpuTime: kit.ThreadTime,
			kernel: func(*spec) (job, error) {
				return nil,
					errors.New("an in-memory link has no kernel sockets")
			},
			port: func(s *spec) (driver.Port, error) {
				if !s.Active { // the passive side is prepared first
					var err error
					if ports, err = testbed.OpenPorts(testbed.Config{}); err != nil {
						return nil, err
					}
				}
				return ports.Port[i], nil
			},
		})
	}
	return func() error { return errors.Join(b.sides[0].close(), b.sides[1].close()) }, nil
}

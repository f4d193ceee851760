package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// side is the parent's connection to a server. It handles one call at a time.
type side struct {
	name string
	in   io.WriteCloser
	enc  *json.Encoder
	dec  *json.Decoder
	wait func() error // waits for the end of the server, after in has been closed
}

func newSide(name string, in io.WriteCloser, out io.Reader, wait func() error) *side {
	return &side{name: name, in: in, enc: json.NewEncoder(in), dec: json.NewDecoder(out),
		wait: wait}
}

// call sends a request and waits for the reply. If ctx ends first, the side cannot be used anymore.
func (s *side) call(ctx context.Context, q request) (reply, error) {
	type result struct {
		a   reply
		err error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		if r.err = s.enc.Encode(q); r.err == nil {
			r.err = s.dec.Decode(&r.a)
		}
		done <- r
	}()
	select {
	case r := <-done:
		switch {
		case r.err != nil:
			return r.a, fmt.Errorf("side %s ended unexpectedly: %w", s.name, r.err)
		case r.a.Error != "":
			return r.a, fmt.Errorf("side %s: %s", s.name, r.a.Error)
		}
		return r.a, nil
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

// close ends the side, whatever it is doing.
func (s *side) close() error {
	_ = s.in.Close()
	return s.wait()
}

// closeTimeout is how long a process may take to close everything.
const closeTimeout = 3 * time.Second

// startProcess starts this program as a side in the namespace of end. The process ends when its
// standard input is closed, so it ends with its parent. It is in its own process group: signals
// from the terminal reach only the parent, which ends it.
func startProcess(name string, end *veth.End, o *SideOptions) (*side, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(self, o.args()...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	osnet.BeforeStart()
	// A child starts in the namespace of the thread that starts it.
	if err := end.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start side %s: %w", name, err)
	}
	return newSide(name, in, out, func() error {
		late := time.AfterFunc(closeTimeout, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("side %s: %w", name, err)
		}
		return nil
	}), nil
}

// SideCommand is the name of the hidden subcommand of "gorxe bench" that runs ServeSide.
const SideCommand = "side"

// SideOptions configure the process of a side.
type SideOptions struct {
	Iface   string
	Addr    netip.Addr // the interface's IPv4 address
	CPU     int
	Mode    xdp.Mode
	Profile string

	addr, mode string // flags
}

// AddFlags adds the flags of the subcommand.
func (o *SideOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Iface, "iface", "", "interface")
	fs.StringVar(&o.addr, "addr", "", "IPv4 address of the interface")
	fs.IntVar(&o.CPU, "cpu", -1, "CPU")
	fs.StringVar(&o.mode, "mode", xdp.Auto.String(), "XDP mode")
	fs.StringVar(&o.Profile, "cpuprofile", "", "beginning of the names of CPU profiles")
}

// args returns the arguments with which AddFlags restores o.
func (o *SideOptions) args() []string {
	return []string{
		"bench", SideCommand, "--iface", o.Iface, "--addr", o.Addr.String(), "--cpu",
		strconv.Itoa(o.CPU),
		"--mode", o.Mode.String(), "--cpuprofile", o.Profile,
	}
}

// ServeSide handles the requests of the parent on in and out, with the options from the flags.
func (o *SideOptions) ServeSide(in io.Reader, out io.Writer) (err error) {
	if o.Addr, err = netip.ParseAddr(o.addr); err != nil {
		return cli.Usage(err)
	}
	if o.Mode, err = xdp.ParseMode(o.mode); err != nil {
		return cli.Usage(err)
	}
	return serve(in, out, &environment{
		cpu: o.CPU, cpuTime: kit.ProcessTime, profile: o.Profile,
		port: o.open,
		kernel: func(s *spec) (job, error) {
			if s.Kind == kindRuns {
				r, err := newRuns(s, o.Iface, o.Addr)
				if err != nil {
					return nil, err
				}
				return r, nil
			}
			k, err := newKernel(s, o.Iface, o.Addr)
			if err != nil {
				return nil, err // not k: a job with a nil pointer would not be nil
			}
			return k, nil
		},
	})
}

// open opens a port on the interface. Bare frames need AF_XDP.
func (o *SideOptions) open(s *spec) (driver.Port, error) {
	if err := kit.SetOffload(o.Iface, true); err != nil {
		return nil, err
	}
	if s.Kind == kindGorxe && s.Port == portUDP {
		return udp.Open(o.Iface, udp.Options{})
	}
	port, err := xdp.Open(o.Iface, xdp.Options{Mode: o.Mode, Runs: s.Kind == kindGorxe})
	if err != nil && s.Port == portAuto {
		return udp.Open(o.Iface, udp.Options{})
	}
	return port, err
}

// startLocal starts a side as a goroutine of this process.
func startLocal(name string, env *environment) *side {
	fromParent, in := io.Pipe()
	out, toParent := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := serve(fromParent, toParent, env)
		_ = toParent.Close()
		done <- err
	}()
	return newSide(name, in, out, func() error {
		_ = out.Close() // unblocks a server that writes a reply
		return <-done
	})
}

package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/rftp/tcpcopy"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp"
	"github.com/gorxe/gorxe/xdp"
)

// SideCommand is the name of the hidden subcommand of "gorxe bench" that runs Side.Run.
const SideCommand = "copy-side"

// Roles of a side.
const (
	roleRFTPSend    = "rftp-send"
	roleRFTPReceive = "rftp-receive"
	roleBlocks      = "tcp-blocks"
	roleStream      = "tcp-stream"
	roleTCPReceive  = "tcp-receive"
)

// readyText is what a receiver of transport/rftp prints when the sender may start.
const readyText = "ready\n"

// Side is a process that sends or receives.
type Side struct {
	Iface   string
	Addr    string // of the receiver
	Path    string // the file, or the directory that gets it; empty: memory
	Size    int64  // bytes from memory
	Streams int
}

// AddFlags adds the flags of the subcommand.
func (s *Side) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Iface, "iface", "", "interface")
	fs.StringVar(&s.Addr, "addr", "", "address and port of the receiver")
	fs.StringVar(&s.Path, "path", "", "file or directory")
	fs.Int64Var(&s.Size, "size", 0, "bytes")
	fs.IntVar(&s.Streams, "streams", 1, "streams")
}

// side returns the command that runs a role with the flags for a task.
func (b *bench) side(h *host, role string, t *task) []string {
	path := t.src
	if role == roleTCPReceive {
		path = t.dst
	}
	addr := netip.AddrPortFrom(t.to.end.IPv4.Addr(), copyPort).String()
	return []string{b.self, "bench", SideCommand, role, "--iface", h.end.Iface, "--addr", addr,
		"--path", path, "--size", strconv.FormatInt(t.size, 10), "--streams",
		strconv.Itoa(t.streams)}
}

// Run runs a role and prints its result.
func (s *Side) Run(ctx context.Context, role string, out io.Writer) (err error) {
	var r result
	switch role {
	case roleRFTPSend, roleRFTPReceive:
		r, err = s.overRDMA(ctx, role, out)
	case roleBlocks, roleStream:
		before := kit.ProcessTime()
		j := tcpcopy.Job{Method: tcpcopy.Blocks, Streams: s.Streams, Path: s.Path, Size: s.Size}
		if role == roleStream {
			j.Method = tcpcopy.Stream
		}
		r.Bytes, r.Took, err = tcpcopy.Send(ctx, s.Addr, j)
		r.CPU = kit.ProcessTime() - before
	case roleTCPReceive:
		r, err = s.receiveTCP(ctx)
	default:
		err = cli.Usagef("unknown role %q", role)
	}
	if err != nil {
		return err
	}
	return cli.JSON(out, r)
}

func (s *Side) receiveTCP(ctx context.Context) (r result, err error) {
	l, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return r, err
	}
	defer l.Close()
	begin, before := time.Now(), kit.ProcessTime()
	r.Bytes, err = tcpcopy.Receive(ctx, l, s.Path)
	r.Took, r.CPU = time.Since(begin), kit.ProcessTime()-before
	return r, err
}

// overRDMA sends or receives with transport/rftp on the interface.
func (s *Side) overRDMA(ctx context.Context, role string, out io.Writer) (r result, err error) {
	addr, err := netip.ParseAddrPort(s.Addr)
	if err != nil {
		return r, cli.Usage(err)
	}
	port, err := xdp.Open(s.Iface, xdp.Options{Runs: true})
	if err != nil {
		return r, err
	}
	dev, err := roce.New(port)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if role == roleRFTPSend {
		return sendBlocks(ctx, dev, addr, s.Size, s.Streams, kit.ProcessTime)
	}
	l, err := rftp.Listen(dev, addr, rftp.ListenConfig{Config: config(s.Streams)})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if _, err := fmt.Fprint(out, readyText); err != nil {
		return r, err
	}
	return receiveBlocks(ctx, l, kit.ProcessTime)
}

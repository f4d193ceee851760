// Package peer controls the kernel's side of a scenario: a small verbs program in a guest
// (src/verbs-peer.c, libibverbs only), which the guest image contains as /usr/bin/verbs-peer.
package peer

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gorxe/gorxe/interop/guest"
)

//go:embed src/*.c src/*.h
var src embed.FS

// Sources are the C programs that run in a guest, one per NAME.c, and their headers.
func Sources() fs.FS {
	sub, err := fs.Sub(src, "src")
	if err != nil {
		panic(err) // "src" is a valid name
	}
	return sub
}

// program is its path in the image.
const program = "/usr/bin/verbs-peer"

// patience is how long a command may take beyond its own wait.
const patience = time.Minute

// ErrRefused means that the peer could not carry out a command; the text has the reason.
var ErrRefused = errors.New("peer: refused")

// Peer is the program in a guest. It is not safe for concurrent use.
type Peer struct {
	GIDs map[netip.Addr]int // GID table: address to index; IPv4 addresses unmapped

	proc  *guest.Process
	lines chan string
}

// Fields are the key=value pairs of a line.
type Fields map[string]string

// Num returns a field as a number, 0 if it is missing.
func (f Fields) Num(key string) uint64 {
	v, _ := strconv.ParseUint(f[key], 0, 64)
	return v
}

// Reply is the answer to a command: the fields after "ok", and the lines before it, each with its
// first word under the key "".
type Reply struct {
	Fields
	Lines []Fields
}

// Start starts the program, which opens the first RDMA device.
func Start(vm *guest.VM) (*Peer, error) {
	p, err := start(vm, program)
	if err != nil {
		return nil, err
	}
	r, err := p.Do(0, "open")
	if err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	for _, l := range r.Lines {
		a, err := netip.ParseAddr(l["addr"])
		if err != nil {
			return nil, errors.Join(fmt.Errorf("peer: GID %q: %w", l["addr"], err), p.Kill())
		}
		p.GIDs[a.Unmap()] = int(l.Num("i"))
	}
	return p, nil
}

func start(vm *guest.VM, program string) (*Peer, error) {
	proc, err := vm.Start(program)
	if err != nil {
		return nil, err
	}
	p := &Peer{GIDs: map[netip.Addr]int{}, proc: proc, lines: make(chan string)}
	go p.read()
	return p, nil
}

func (p *Peer) read() {
	defer close(p.lines)
	in := bufio.NewScanner(p.proc.Stdout())
	for in.Scan() {
		p.lines <- in.Text()
	}
}

// Do sends a command and returns its answer. wait is the time that the command itself may take
// (poll's ms). An error wraps ErrRefused or guest.ErrGone.
func (p *Peer) Do(wait time.Duration, format string, args ...any) (Reply, error) {
	command := fmt.Sprintf(format, args...)
	if _, err := p.proc.Stdin().Write([]byte(command + "\n")); err != nil {
		return Reply{}, err
	}
	timeout := time.NewTimer(wait + patience)
	defer timeout.Stop()
	var r Reply
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				return r, p.gone(command)
			}
			f := parse(line)
			switch f[""] {
			case "ok":
				r.Fields = f
				return r, nil
			case "err":
				return r, fmt.Errorf("%w: %q: %s", ErrRefused, command,
					strings.TrimPrefix(line, "err "))
			}
			r.Lines = append(r.Lines, f)
		case <-timeout.C:
			return r, fmt.Errorf("peer: %q: no answer in %v: %w", command, wait+patience,
				context.DeadlineExceeded)
		}
	}
}

func (p *Peer) gone(command string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r, err := p.proc.Wait(ctx)
	return fmt.Errorf("%w: the verbs peer ended during %q: status %d, %v %s", guest.ErrGone,
		command, r.Status, err, r.Stderr)
}

// parse splits a line into its first word and its fields. The field "text" takes the rest of the
// line.
func parse(line string) Fields {
	f := Fields{}
	word, rest, _ := strings.Cut(line, " ")
	f[""] = word
	for rest != "" {
		if v, ok := strings.CutPrefix(rest, "text="); ok {
			f["text"] = v
			break
		}
		var w string
		w, rest, _ = strings.Cut(rest, " ")
		if k, v, ok := strings.Cut(w, "="); ok {
			f[k] = v
		}
	}
	return f
}

// Kill ends the program like a crash: the kernel destroys its QPs.
func (p *Peer) Kill() error {
	go func() { // drain its output
		for range p.lines {
		}
	}()
	select {
	case <-p.proc.Done():
		return nil
	default:
	}
	if err := p.proc.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-p.proc.Done():
		return nil
	case <-time.After(patience):
		return errors.New("peer: the program does not end")
	}
}

// Pattern returns the byte at offset i of a block with that seed, as the commands fill and check
// use it.
func Pattern(seed uint32, i int) byte {
	x := (seed*0x10001 + uint32(i)) * 0x9e3779b1
	return byte((x ^ x>>13) * 0x85ebca6b >> 24)
}

// Fill writes the pattern of a block.
func Fill(b []byte, seed uint32) {
	for i := range b {
		b[i] = Pattern(seed, i)
	}
}

// Check compares a block with its pattern.
func Check(b []byte, seed uint32) error {
	for i, v := range b {
		if want := Pattern(seed, i); v != want {
			return fmt.Errorf("byte %d of %d is %#02x, want %#02x", i, len(b), v, want)
		}
	}
	return nil
}

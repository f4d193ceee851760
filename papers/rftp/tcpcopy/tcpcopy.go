package tcpcopy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	// BlockSize is the size of a block in bytes, the default of GridFTP.
	BlockSize = 256 << 10
	// MaxStreams is the largest number of streams of a copy.
	MaxStreams = 64
	// maxName is the length of the longest name of a file in bytes.
	maxName = 255
)

// Method is how the bytes of a file are copied.
type Method byte

// The methods.
const (
	Blocks Method = 1 // blocks with offsets over several streams
	Stream Method = 2 // io.Copy over one stream
)

// ErrPeer means that the other side sent something that does not belong to a copy.
var ErrPeer = errors.New("tcpcopy: invalid data from the peer")

// Each stream begins with a greeting: method, number of streams, length of the name, size of the
// file, name. An empty name means that the data stays in memory. When a stream has carried all its
// data, the receiver answers with the byte complete.
const (
	greetingLen = 1 + 1 + 1 + 8
	complete    = 0x06
)

// greeting describes a copy.
type greeting struct {
	method  Method
	streams int
	size    int64
	name    string
}

func (g *greeting) write(w io.Writer) error {
	b := make([]byte, 0, greetingLen+len(g.name))
	b = append(b, byte(g.method), byte(g.streams), byte(len(g.name)))
	b = binary.BigEndian.AppendUint64(b, uint64(g.size))
	_, err := w.Write(append(b, g.name...))
	return err
}

func (g *greeting) read(r io.Reader) error {
	var b [greetingLen + maxName]byte
	if _, err := io.ReadFull(r, b[:greetingLen]); err != nil {
		return err
	}
	n := int(b[2])
	if _, err := io.ReadFull(r, b[greetingLen:greetingLen+n]); err != nil {
		return err
	}
	*g = greeting{method: Method(b[0]), streams: int(b[1]),
		size: int64(binary.BigEndian.Uint64(b[3:])), name: string(b[greetingLen : greetingLen+n])}
	switch {
	case g.method != Blocks && g.method != Stream,
		g.streams < 1 || g.streams > MaxStreams,
		g.method == Stream && (g.streams != 1 || g.name == ""),
		g.size < 0,
		g.name != "" && (g.name != filepath.Base(g.name) || g.name == "." || g.name == ".."):
		return fmt.Errorf("%w: greeting %q", ErrPeer, b[:greetingLen+n])
	}
	return nil
}

// Job is what Send sends.
type Job struct {
	Method  Method
	Streams int    // of Blocks
	Path    string // of the file; "" sends Size bytes from memory, with Blocks only
	Size    int64
}

// Send connects to a receiver and sends a file, or bytes from memory. It returns the number of
// bytes and the time from the first byte until the receiver has stored all of them.
func Send(ctx context.Context, addr string, j Job) (bytes int64, took time.Duration, err error) {
	g := greeting{method: j.Method, streams: max(1, j.Streams), size: j.Size}
	var file *os.File
	if j.Path != "" {
		if file, err = os.Open(j.Path); err != nil {
			return 0, 0, err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return 0, 0, err
		}
		g.name, g.size = filepath.Base(j.Path), info.Size()
	}
	if g.streams > MaxStreams || len(g.name) > maxName || g.method == Stream && file == nil {
		return 0, 0, fmt.Errorf("tcpcopy: invalid job %+v", j)
	}
	conns := make([]*net.TCPConn, g.streams)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}()
	for i := range conns {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return 0, 0, err
		}
		conns[i] = c.(*net.TCPConn)
		if err := g.write(c); err != nil {
			return 0, 0, err
		}
	}
	stop := context.AfterFunc(ctx, func() {
		for _, c := range conns {
			_ = c.Close()
		}
	})
	defer stop()
	begin := time.Now()
	if g.method == Stream {
		err = sendStream(conns[0], file, g.size)
	} else {
		err = sendBlocks(conns, file, g.size)
	}
	if err == nil {
		err = awaitComplete(conns)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return g.size, time.Since(begin), err
}

// awaitComplete waits until the receiver has stored what each stream carried.
func awaitComplete(conns []*net.TCPConn) error {
	for _, c := range conns {
		var b [1]byte
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return fmt.Errorf("wait for the receiver: %w", err)
		}
		if b[0] != complete {
			return ErrPeer
		}
	}
	return nil
}

// Receive accepts the streams of one copy, stores the file in the directory dir, and returns the
// number of received bytes. Bytes that the sender has in memory are received and dropped.
func Receive(ctx context.Context, l net.Listener, dir string) (bytes int64, err error) {
	var conns []*net.TCPConn
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	var g greeting
	for len(conns) == 0 || len(conns) < g.streams {
		c, err := l.Accept()
		if err != nil {
			return 0, err
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			return 0, errors.Join(errors.New("tcpcopy: the listener is not for TCP"), c.Close())
		}
		conns = append(conns, tcp)
		var other greeting
		if err := other.read(c); err != nil {
			return 0, err
		}
		if len(conns) > 1 && other != g {
			return 0, fmt.Errorf("%w: the greetings of the streams differ", ErrPeer)
		}
		g = other
	}
	closing := context.AfterFunc(ctx, func() {
		for _, c := range conns {
			_ = c.Close()
		}
	})
	defer closing()
	var file *os.File
	if g.name != "" {
		if file, err = os.Create(filepath.Join(dir, g.name)); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
	}
	if g.method == Stream {
		bytes, err = receiveStream(conns[0], file, g.size)
	} else {
		bytes, err = receiveBlocks(conns, file, g.size)
	}
	if err == nil && bytes != g.size {
		err = fmt.Errorf("%w: %d bytes of %d", ErrPeer, bytes, g.size)
	}
	for _, c := range conns {
		if err == nil {
			_, err = c.Write([]byte{complete})
		}
	}
	return bytes, err
}

package pingpong

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/gorxe/gorxe/roce"
)

const (
	// lineLen is the length of a destination on the wire: "lid:qpn:psn:gid" in hexadecimal digits, and a NUL.
	lineLen = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1
	// farewell is what the client says when it has everything, NUL included.
	farewell = "done\x00"
	// srqLines is how many destinations the SRQ example sends, whatever number of queue pairs it uses.
	srqLines = 256
	// exchangeTime bounds the exchange once a client is there.
	exchangeTime = 10 * time.Second
)

var errExchange = errors.New("the peer does not speak the exchange of ibv_*_pingpong")

// strange is the error of a server whose client has not come to play.
type strange struct{ error }

func (s strange) Unwrap() error { return s.error }

// destination is one queue pair as its owner announces it. The LID of InfiniBand is 0 in RoCE.
type destination struct {
	qpn roce.QPN
	psn roce.PSN
	gid roce.GID
}

func (d destination) line() []byte {
	return fmt.Appendf(nil, "%04x:%06x:%06x:%x\x00", 0, uint32(d.qpn), uint32(d.psn), d.gid[:])
}

func (d destination) String() string {
	return fmt.Sprintf("LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %v", 0, uint32(d.qpn), uint32(d.psn), d.gid)
}

// parseLine reads a destination.
func parseLine(b []byte) (d destination, err error) {
	bad := fmt.Errorf("%w: it sent %q instead of a queue pair's address", errExchange, b)
	text, ok := strings.CutSuffix(string(b), "\x00")
	f := strings.Split(text, ":")
	if !ok || len(f) != 4 {
		return d, bad
	}
	var n [3]uint32
	for i := range n {
		if n[i], err = parseHex(f[i]); err != nil {
			return d, bad
		}
	}
	gid, err := hex.DecodeString(f[3])
	if err != nil || len(gid) != len(d.gid) || n[1] > 0xffffff || n[2] > 0xffffff {
		return d, bad
	}
	return destination{roce.QPN(n[1]), roce.PSN(n[2]), roce.GID(gid)}, nil
}

func parseHex(s string) (v uint32, err error) {
	if len(s) == 0 || len(s) > 8 {
		return 0, errExchange
	}
	b, err := hex.DecodeString(strings.Repeat("0", 8-len(s)) + s)
	if err != nil {
		return 0, err
	}
	for _, x := range b {
		v = v<<8 | uint32(x)
	}
	return v, nil
}

// check tells why a destination cannot be played with.
func (d destination) check() error {
	switch {
	case d.gid.IsZero():
		return errors.New("the peer sent no GID: start it with -g and the index of one (1 is IPv4 on most hosts)")
	case d.qpn == 0:
		return errors.New("the peer sent no queue pair: choose the same number of them (-q) on both ends")
	}
	return nil
}

// within makes an exchange end in time, or when ctx does.
func within(ctx context.Context, conn net.Conn, do func() error) error {
	if err := conn.SetDeadline(time.Now().Add(exchangeTime)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := do()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func readLines(conn io.Reader, n int) ([]destination, error) {
	out := make([]destination, n)
	b := make([]byte, lineLen)
	for i := range out {
		if got, err := readLine(conn, b); err != nil {
			return nil, fmt.Errorf("%w: it sent %d bytes (%q) of queue pair %d's %d: %w", errExchange, got, b[:got], i, lineLen, err)
		}
		var err error
		if out[i], err = parseLine(b); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// errNoLine: what has come can be the start of no destination.
var errNoLine = errors.New("no digits and colons")

// readLine fills b. It judges what comes as it comes, for who speaks something else may wait for an answer after a few bytes.
func readLine(conn io.Reader, b []byte) (got int, err error) {
	for got < len(b) {
		n, err := conn.Read(b[got:])
		for i := got; i < got+n; i++ {
			if c := b[i]; i < len(b)-1 && c != ':' && (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return got + n, errNoLine
			}
		}
		if got += n; err != nil && got < len(b) {
			return got, err
		}
	}
	return got, nil
}

// writeLines sends each destination in a segment of its own if the peer takes them so: the examples read one at a time.
func writeLines(conn io.Writer, ds []destination, n int) error {
	for i := range n {
		var d destination
		if i < len(ds) {
			d = ds[i]
		}
		if _, err := conn.Write(d.line()); err != nil {
			return fmt.Errorf("tell the peer about the queue pairs: %w", err)
		}
	}
	return nil
}

// lines is how many destinations an example sends.
func lines(kind string) int {
	if kind == "srq" {
		return srqLines
	}
	return 1
}

// tellFirst is the client's exchange.
func tellFirst(ctx context.Context, conn net.Conn, kind string, mine []destination) (peer []destination, err error) {
	err = within(ctx, conn, func() (err error) {
		if err = writeLines(conn, mine, lines(kind)); err != nil {
			return err
		}
		if peer, err = readLines(conn, lines(kind)); err != nil {
			return err
		}
		_, err = io.WriteString(conn, farewell)
		return err
	})
	return peer, err
}

// hearFirst is the server's exchange. ready gets the client's destinations, makes this end able to receive, and returns its own.
func hearFirst(ctx context.Context, conn net.Conn, kind string, ready func(peer []destination) ([]destination, error)) error {
	var peer []destination
	err := within(ctx, conn, func() (err error) {
		peer, err = readLines(conn, lines(kind))
		return err
	})
	if errors.Is(err, errExchange) {
		return strange{err}
	}
	if err != nil {
		return err
	}
	mine, err := ready(peer)
	if err != nil {
		return err
	}
	return within(ctx, conn, func() error {
		if err := writeLines(conn, mine, lines(kind)); err != nil {
			return err
		}
		b := make([]byte, len(farewell))
		if n, err := io.ReadFull(conn, b); err != nil || !bytes.Equal(b, []byte(farewell)) {
			return fmt.Errorf("%w: it ended with %q instead of %q", errExchange, b[:n], farewell)
		}
		return nil
	})
}

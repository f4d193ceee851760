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
	// lineLen is the length of an address in the exchange: LID, QPN, PSN and GID in hexadecimal
	// digits, separated by colons, and a NUL.
	lineLen = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1
	// done is the client's last message of the exchange, including the NUL.
	done = "done\x00"
	// exchangeTimeout bounds each part of the exchange.
	exchangeTimeout = 10 * time.Second
)

// ErrExchange means that the peer sent something that does not belong to the protocol.
var ErrExchange = errors.New("the peer does not speak the protocol of ibv_*_pingpong")

// notAClient marks the error of a connection that is not from a client. Serve continues after it.
type notAClient struct{ error }

func (e notAClient) Unwrap() error { return e.error }

// Address identifies a queue pair in the exchange. The LID of InfiniBand is always 0 in RoCE.
type Address struct {
	QPN roce.QPN
	PSN roce.PSN
	GID roce.GID
}

// String formats the address like the example programs.
func (a Address) String() string {
	return fmt.Sprintf("LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %v", 0, uint32(a.QPN),
		uint32(a.PSN), a.GID)
}

func (a Address) line() []byte {
	return fmt.Appendf(nil, "%04x:%06x:%06x:%x\x00", 0, uint32(a.QPN), uint32(a.PSN), a.GID[:])
}

// check reports why no connection to the address is possible.
func (a Address) check() error {
	switch {
	case a.GID.IsZero():
		return errors.New("the peer sent no GID: start it with -g and the index of a GID (1 is IPv4 on most hosts)")
	case a.QPN == 0:
		return errors.New("the peer sent too few queue pairs: choose the same number (-q) on both sides")
	}
	return nil
}

func parseLine(b []byte) (a Address, err error) {
	bad := fmt.Errorf("%w: it sent %q instead of the address of a queue pair", ErrExchange, b)
	text, ok := strings.CutSuffix(string(b), "\x00")
	f := strings.Split(text, ":")
	if !ok || len(f) != 4 {
		return a, bad
	}
	var n [3]uint32
	for i := range n {
		if n[i], err = parseHex(f[i]); err != nil {
			return a, bad
		}
	}
	gid, err := hex.DecodeString(f[3])
	if err != nil || len(gid) != len(a.GID) || n[1] >= 0xffffff || n[2] > 0xffffff {
		return a, bad
	}
	return Address{roce.QPN(n[1]), roce.PSN(n[2]), roce.GID(gid)}, nil
}

// parseHex reads up to 8 hexadecimal digits. Unlike strconv.ParseUint it accepts no sign, prefix or
// underscore.
func parseHex(s string) (v uint32, err error) {
	if len(s) == 0 || len(s) > 8 {
		return 0, ErrExchange
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

// clientExchange sends the addresses of the local queue pairs and returns those of the peer.
func clientExchange(ctx context.Context, conn net.Conn, lines int, local []Address) (
	peer []Address, err error) {
	err = withDeadline(ctx, conn, func() (err error) {
		if err = writeLines(conn, local, lines); err != nil {
			return err
		}
		if peer, err = readLines(conn, lines); err != nil {
			return err
		}
		_, err = io.WriteString(conn, done)
		return err
	})
	return peer, err
}

// serverExchange is the server's part of the exchange. It passes the client's addresses to ready,
// which makes the local queue pairs able to receive and returns their addresses.
func serverExchange(
	ctx context.Context, conn net.Conn, lines int, ready func(peer []Address) ([]Address, error),
) error {
	var peer []Address
	err := withDeadline(ctx, conn, func() (err error) {
		peer, err = readLines(conn, lines)
		return err
	})
	if errors.Is(err, ErrExchange) {
		return notAClient{err}
	}
	if err != nil {
		return err
	}
	local, err := ready(peer)
	if err != nil {
		return err
	}
	return withDeadline(ctx, conn, func() error {
		if err := writeLines(conn, local, lines); err != nil {
			return err
		}
		b := make([]byte, len(done))
		if n, err := io.ReadFull(conn, b); err != nil || !bytes.Equal(b, []byte(done)) {
			return fmt.Errorf("%w: it ended the exchange with %q instead of %q", ErrExchange, b[:n],
				done)
		}
		return nil
	})
}

// withDeadline calls f and makes reads and writes of conn fail after exchangeTimeout or when ctx
// ends.
func withDeadline(ctx context.Context, conn net.Conn, f func() error) error {
	if err := conn.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := f()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// writeLines sends n addresses; those beyond the end of addrs are zero. Each is a separate write
// because the example programs read one address at a time.
func writeLines(conn io.Writer, addrs []Address, n int) error {
	for i := range n {
		var a Address
		if i < len(addrs) {
			a = addrs[i]
		}
		if _, err := conn.Write(a.line()); err != nil {
			return fmt.Errorf("send the addresses of the queue pairs: %w", err)
		}
	}
	return nil
}

func readLines(conn io.Reader, n int) ([]Address, error) {
	addrs := make([]Address, n)
	b := make([]byte, lineLen)
	for i := range addrs {
		if got, err := readLine(conn, b); err != nil {
			return nil, fmt.Errorf("%w: of the %d bytes of queue pair %d's address it sent %d (%q): %w", ErrExchange, lineLen, i, got, b[:got], err)
		}
		var err error
		if addrs[i], err = parseLine(b); err != nil {
			return nil, err
		}
	}
	return addrs, nil
}

var errNotHex = errors.New("not hexadecimal digits and colons")

// readLine fills b. It checks each byte as it arrives: the client of another protocol may wait for
// an answer after a few bytes, and would otherwise block the server until the deadline.
func readLine(conn io.Reader, b []byte) (got int, err error) {
	for got < len(b) {
		n, err := conn.Read(b[got:])
		for i := got; i < got+n; i++ {
			if c := b[i]; i < len(b)-1 && c != ':' && (c < '0' || c > '9') &&
				(c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return got + n, errNotHex
			}
		}
		if got += n; err != nil && got < len(b) {
			return got, err
		}
	}
	return got, nil
}

package ends

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
)

// The two ends of a transport agree on sizes in the private data of the connection manager's messages, big endian: magic (4 bytes),
// version 1, 0, blocks (2), block size (4). A request says what the sender wants, a reply and a refusal what the receiver has; what follows in
// a reply is the transport's own.
const (
	version  = 1
	SizesLen = 12
)

// Sizes are what both ends have to have in common: how many blocks there are, and how many bytes of data a block holds.
type Sizes struct{ Blocks, Size int }

// String leaves out what is 0, and so of no matter.
func (s Sizes) String() string {
	switch {
	case s.Size == 0:
		return fmt.Sprintf("%d blocks", s.Blocks)
	case s.Blocks == 0:
		return fmt.Sprintf("blocks of %d bytes", s.Size)
	}
	return fmt.Sprintf("%d blocks of %d bytes", s.Blocks, s.Size)
}

// Protocol is a transport, as its two ends know each other.
type Protocol struct {
	Magic       [4]byte
	ErrPeer     error  // the other end speaks something else
	ErrMismatch error  // the sizes do not fit
	Advice      string // what to do about that
}

// Put appends s to b as the protocol's message has it. Blocks have to be less than 1<<16, their size less than 1<<32.
func (p *Protocol) Put(b []byte, s Sizes) []byte {
	b = append(b, p.Magic[:]...)
	b = append(b, version, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(s.Blocks))
	return binary.BigEndian.AppendUint32(b, uint32(s.Size))
}

// Parse reads what a message begins with. Anything else gives ErrPeer.
func (p *Protocol) Parse(b []byte) (Sizes, error) {
	if len(b) < SizesLen || [4]byte(b[:4]) != p.Magic || b[4] != version {
		return Sizes{}, p.ErrPeer
	}
	return Sizes{Blocks: int(binary.BigEndian.Uint16(b[6:])), Size: int(binary.BigEndian.Uint32(b[8:]))}, nil
}

// Agree tells whether what a sender wants is what the receiver has. Zeros take whatever that is.
func (p *Protocol) Agree(have, want Sizes) error {
	if (want.Blocks == 0 || want.Blocks == have.Blocks) && (want.Size == 0 || want.Size == have.Size) {
		return nil
	}
	return fmt.Errorf("%w: the receiver has %v, the sender wants %v: %s", p.ErrMismatch, have, want, p.Advice)
}

// Refused makes a receiver's refusal the sender's error; any other error stays what it is.
func (p *Protocol) Refused(err error, want Sizes) error {
	var r *roce.RejectError
	if !errors.As(err, &r) {
		return err
	}
	have, e := p.Parse(r.PrivateData)
	if e != nil {
		return err
	}
	if e := p.Agree(have, want); e != nil {
		return e
	}
	return err
}

// Listener waits for senders of one protocol. Its methods are safe for concurrent use.
type Listener struct {
	Dev  *roce.Device // whose it is
	p    *Protocol
	have Sizes
	l    *roce.Listener
}

// Listen makes a device accept the protocol's senders at addr.
func (p *Protocol) Listen(dev *roce.Device, addr netip.AddrPort, have Sizes) (*Listener, error) {
	l, err := dev.Listen(addr, roce.ListenOptions{})
	if err != nil {
		return nil, err
	}
	return &Listener{Dev: dev, p: p, have: have, l: l}, nil
}

// Addr is where the Listener listens.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Close stops listening; what was accepted goes on.
func (l *Listener) Close() error { return l.l.Close() }

// Next waits for the next request of a sender that fits, to be accepted or rejected by the caller. One that does not fit is refused,
// and the error says why; the Listener goes on.
func (l *Listener) Next(ctx context.Context) (*roce.Request, error) {
	q, err := l.l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	want, err := l.p.Parse(q.PrivateData())
	if err == nil {
		err = l.p.Agree(l.have, want)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w (asked by %v)", err, q.RemoteAddr()), q.Reject(l.p.Put(nil, l.have)))
	}
	return q, nil
}

// blockAlign keeps blocks on cache lines of their own.
const blockAlign = 64

// Stride is the distance, in bytes, between two blocks of size bytes each.
func Stride(size int) int { return (size + blockAlign - 1) / blockAlign * blockAlign }

package blocks

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// Both sides agree on sizes in the private data of the connection manager's messages, big endian:
// magic (4 bytes), version 1, 0, blocks (2), block size (4). A request contains what the sender
// wants; a reply and a rejection contain what the receiver has. A reply may continue with fields of
// the transport.
const (
	version  = 1
	SizesLen = 12
)

// Sizes are the parameters that both sides must share: the number of blocks, and the bytes of data
// per block.
type Sizes struct{ Blocks, Size int }

// String omits values that are 0.
func (s Sizes) String() string {
	switch {
	case s.Size == 0:
		return fmt.Sprintf("%d blocks", s.Blocks)
	case s.Blocks == 0:
		return fmt.Sprintf("blocks of %d bytes", s.Size)
	}
	return fmt.Sprintf("%d blocks of %d bytes", s.Blocks, s.Size)
}

// Protocol describes a transport's agreement on sizes.
type Protocol struct {
	Magic       [4]byte
	ErrPeer     error  // the peer speaks another protocol
	ErrMismatch error  // the sizes differ
	Advice      string // what to do about different sizes
}

// Put appends s in the message format to b. Blocks must be below 1<<16, the size below 1<<32.
func (p *Protocol) Put(b []byte, s Sizes) []byte {
	b = append(b, p.Magic[:]...)
	b = append(b, version, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(s.Blocks))
	return binary.BigEndian.AppendUint32(b, uint32(s.Size))
}

// Parse reads the beginning of a message. It returns ErrPeer for anything else.
func (p *Protocol) Parse(b []byte) (Sizes, error) {
	if len(b) < SizesLen || [4]byte(b[:4]) != p.Magic || b[4] != version {
		return Sizes{}, p.ErrPeer
	}
	return Sizes{Blocks: int(binary.BigEndian.Uint16(b[6:])),
		Size: int(binary.BigEndian.Uint32(b[8:]))}, nil
}

// Agree returns nil if the sender's sizes match the receiver's. Zeros match everything.
func (p *Protocol) Agree(have, want Sizes) error {
	if (want.Blocks == 0 || want.Blocks == have.Blocks) &&
		(want.Size == 0 || want.Size == have.Size) {
		return nil
	}
	return fmt.Errorf("%w: the receiver has %v, the sender wants %v: %s", p.ErrMismatch, have, want,
		p.Advice)
}

// Refused turns a rejection by the receiver into ErrMismatch if the sizes differ. Other errors are
// returned unchanged.
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

// blockAlign keeps blocks on separate cache lines.
const blockAlign = 64

// Stride is the distance in bytes between two blocks of size bytes each.
func Stride(size int) int { return (size + blockAlign - 1) / blockAlign * blockAlign }

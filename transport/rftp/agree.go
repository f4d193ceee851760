package rftp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp/core"
)

// Both sides agree in the private data of the connection manager's messages, big endian. All begin
// with "GXFT", version 1, kind (1 byte). The control QP:
//
//	request:   mode (1), data QPs (1), least data QPs (1), class (1), 0 (2), block size (4), least
//	           size (4)
//	reply:     mode (1), data QPs (1), 0 (4), block size (4), connection (8)
//	rejection: as a request, with the limits of the side that rejects
//
// A data QP:
//
//	request:   0 (1), index (1), 0 (8), connection (8)
//	reply:     nothing
const (
	magic      = "GXFT"
	privateLen = 24

	kindControl = 0
	kindData    = 1
)

// Limits are what one side accepts.
type Limits struct {
	Mode                    Mode
	DataQPs, MinDataQPs     int
	BlockSize, MinBlockSize int
}

// String omits nothing: both sides' values are to be compared.
func (l Limits) String() string {
	return fmt.Sprintf("%v mode, %d to %d data QPs, blocks of %d to %d bytes", l.Mode, l.MinDataQPs,
		l.DataQPs, l.MinBlockSize, l.BlockSize)
}

// MismatchError says that both sides' limits exclude each other.
type MismatchError struct{ Own, Peer Limits }

// Error returns the message.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("%v: this side has %v; the peer has %v", ErrMismatch, e.Own, e.Peer)
}

// Unwrap returns ErrMismatch.
func (e *MismatchError) Unwrap() error { return ErrMismatch }

func (c *Config) limits() Limits {
	return Limits{c.Mode, c.DataQPs, c.MinDataQPs, c.BlockSize, c.MinBlockSize}
}

// agreement is what both sides use.
type agreement struct {
	mode      Mode
	qps, size int
}

// agree returns what both sides use. The result does not depend on which side computes it.
func agree(own, peer Limits) (agreement, error) {
	a := agreement{own.Mode, min(own.DataQPs, peer.DataQPs), min(own.BlockSize, peer.BlockSize)}
	if own.Mode != peer.Mode || a.qps < max(own.MinDataQPs, peer.MinDataQPs) ||
		a.size < max(own.MinBlockSize, peer.MinBlockSize) {
		return a, &MismatchError{own, peer}
	}
	return a, nil
}

func header(kind byte) []byte {
	b := make([]byte, privateLen)
	copy(b, magic)
	b[4], b[5] = core.Version, kind
	return b
}

// parseHeader returns the kind of a message.
func parseHeader(b []byte) (kind byte, err error) {
	if len(b) < privateLen || string(b[:4]) != magic || b[4] != core.Version {
		return 0, fmt.Errorf("%w: it does not speak version %d of this protocol", ErrPeer,
			core.Version)
	}
	return b[5], nil
}

func (l *Limits) put() []byte {
	b := header(kindControl)
	b[6], b[7], b[8] = byte(l.Mode), byte(l.DataQPs), byte(l.MinDataQPs)
	binary.BigEndian.PutUint32(b[12:], uint32(l.BlockSize))
	binary.BigEndian.PutUint32(b[16:], uint32(l.MinBlockSize))
	return b
}

// parseLimits reads a request or rejection of the control QP.
func parseLimits(b []byte) (l Limits, err error) {
	kind, err := parseHeader(b)
	if err != nil {
		return l, err
	}
	l = Limits{Mode: Mode(b[6]), DataQPs: int(b[7]), MinDataQPs: int(b[8]),
		BlockSize:    int(binary.BigEndian.Uint32(b[12:])),
		MinBlockSize: int(binary.BigEndian.Uint32(b[16:]))}
	if kind != kindControl || l.DataQPs < 1 || l.DataQPs > MaxQPs || l.MinDataQPs > l.DataQPs ||
		l.BlockSize < core.MinBlockSize || l.BlockSize > MaxBlockSize ||
		l.MinBlockSize > l.BlockSize {
		return l, fmt.Errorf("%w: it has %v", ErrPeer, l)
	}
	return l, nil
}

// putRequest returns the request of the control QP.
func (l *Limits) putRequest(class int) []byte {
	b := l.put()
	b[9] = byte(class)
	return b
}

// parseRequest reads the request of the control QP.
func parseRequest(b []byte) (l Limits, class int, err error) {
	if l, err = parseLimits(b); err != nil {
		return l, 0, err
	}
	if b[9] > MaxClass {
		return l, 0, fmt.Errorf("%w: it chose traffic class %d, possible are 0 to %d", ErrPeer, b[9],
			MaxClass)
	}
	return l, int(b[9]), nil
}

func (a *agreement) put(conn uint64) []byte {
	b := header(kindControl)
	b[6], b[7] = byte(a.mode), byte(a.qps)
	binary.BigEndian.PutUint32(b[12:], uint32(a.size))
	binary.BigEndian.PutUint64(b[16:], conn)
	return b
}

// parseReply reads the reply to a request with the given limits.
func parseReply(b []byte, own Limits) (a agreement, conn uint64, err error) {
	kind, err := parseHeader(b)
	if err != nil {
		return a, 0, err
	}
	a = agreement{Mode(b[6]), int(b[7]), int(binary.BigEndian.Uint32(b[12:]))}
	if kind != kindControl || a.mode != own.Mode || a.qps < own.MinDataQPs || a.qps > own.DataQPs ||
		a.size < own.MinBlockSize || a.size > own.BlockSize {
		return a, 0, fmt.Errorf("%w: it chose %v mode, %d data QPs and blocks of %d bytes, "+
			"this side has %v", ErrPeer, a.mode, a.qps, a.size, own)
	}
	return a, binary.BigEndian.Uint64(b[16:]), nil
}

// putData returns the request of a data QP.
func putData(conn uint64, index int) []byte {
	b := header(kindData)
	b[7] = byte(index)
	binary.BigEndian.PutUint64(b[16:], conn)
	return b
}

// parseData reads the request of a data QP, whose header was parsed.
func parseData(b []byte) (conn uint64, index int) {
	return binary.BigEndian.Uint64(b[16:]), int(b[7])
}

// refused explains the rejection of a control QP.
func refused(err error, own Limits) error {
	var r *roce.RejectError
	if !errors.As(err, &r) || r.Reason != roce.RejectConsumer {
		return err
	}
	peer, e := parseLimits(r.PrivateData)
	if e != nil {
		return fmt.Errorf("%w: %w", ErrPeer, err)
	}
	if _, e := agree(own, peer); e != nil {
		return e
	}
	return err
}

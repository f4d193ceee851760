package ping

import (
	"fmt"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// Service is the name of the service in package exchange.
const Service = "ping"

// MaxBytes is the largest size of a ping.
const MaxBytes = 1 << 20

const (
	slots = 8 // pings that may be outstanding
	// sendDepth is larger than slots because a reply may arrive before the acknowledgment of its
	// ping.
	sendDepth = 2 * slots
	recvFlag  = uint64(1) << 63 // in a work request's ID: a receive
)

// Params are the parameters of a session.
type Params struct {
	Bytes int `json:"bytes"` // of each ping, 0 to MaxBytes
}

func (p *Params) check() error {
	if p.Bytes < 0 || p.Bytes > MaxBytes {
		return fmt.Errorf("%w: pings of %d bytes: choose 0 B to %s",
			exchange.ErrProtocol, p.Bytes, cli.FormatSize(MaxBytes))
	}
	return nil
}

// slotBytes returns the size of a slot. A slot is never empty, so that receives have a buffer.
func (p *Params) slotBytes() int { return max(1, p.Bytes) }

func (p *Params) session(gid device.GIDIndex) session.Config {
	return session.Config{
		QPs: 1, SendDepth: sendDepth, RecvDepth: slots, Bytes: slots * p.slotBytes(), GID: gid,
	}
}

// postRecv posts the receive of a slot.
func (p *Params) postRecv(s *session.Session, slot int) error {
	sge := []roce.SGE{s.MR.SGE(s.In(0)+slot*p.slotBytes(), p.slotBytes())}
	return s.QP.PostRecv(roce.RecvWR{ID: recvFlag | uint64(slot), SGEs: sge})
}

// postRecvs posts the receives of all slots.
func (p *Params) postRecvs(s *session.Session) error {
	for i := range slots {
		if err := p.postRecv(s, i); err != nil {
			return err
		}
	}
	return nil
}

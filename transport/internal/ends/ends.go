// Package ends holds what the transports share: the objects of one side of a connection and the
// agreement on block sizes.
package ends

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
)

// End is a queue pair with its completion queues and memory. It owns everything except the device.
// New, Alloc and Close must be called by one goroutine.
type End struct {
	Dev  *roce.Device
	PD   *roce.PD
	CQ   *roce.CQ // completions of the send queue
	Recv *roce.CQ // completions of the receive queue; equals CQ if there is only one queue
	QP   *roce.QP
	mrs  []*roce.MR
}

// Depths are the capacities of the queues, in work requests and completions.
type Depths struct {
	Send, SendCQ int
	Recv, RecvCQ int  // RecvCQ 0: one completion queue for both
	Inline       int  // bytes
	GID          *int // local GID index; see GIDFor
}

// TurnFrom is the block size in bytes from which a program that drives its device transmits each
// block as soon as it is posted. Such a block nearly fills a batch of frames, so waiting for more
// gains nothing, and the peer processes it while the next one is built.
const TurnFrom = 16 << 10

// New creates a queue pair in state INIT.
func New(dev *roce.Device, d Depths) (e *End, err error) {
	e = &End{Dev: dev}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if e.PD, err = dev.AllocPD(); err != nil {
		return e, err
	}
	if e.CQ, err = dev.CreateCQ(d.SendCQ); err != nil {
		return e, err
	}
	e.Recv = e.CQ
	if d.RecvCQ > 0 {
		if e.Recv, err = dev.CreateCQ(d.RecvCQ); err != nil {
			e.Recv = nil
			return e, err
		}
	}
	e.QP, err = dev.CreateQP(e.PD, roce.QPConfig{
		SendCQ: e.CQ, RecvCQ: e.Recv, SendDepth: d.Send, RecvDepth: d.Recv, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: d.Inline, GIDIndex: d.GID,
	})
	return e, err
}

// GIDFor returns the index of the GID with the address own, or else of the first GID of the same
// kind. Nil means that the device chooses.
func GIDFor(dev *roce.Device, own netip.Addr) *int {
	own = own.Unmap().WithZone("")
	var like *int
	for _, g := range dev.GIDs() {
		a := g.Addr.Unmap().WithZone("")
		if a == own {
			return &g.Index
		}
		if like == nil && a.Is4() == own.Is4() && a.IsLinkLocalUnicast() == own.IsLinkLocalUnicast() {
			like = &g.Index
		}
	}
	return like
}

// Alloc allocates a memory region of size bytes that lives as long as the End.
func (e *End) Alloc(size int, access roce.Access) (*roce.MR, error) {
	mr, err := e.PD.AllocMR(size, access)
	if err == nil {
		e.mrs = append(e.mrs, mr)
	}
	return mr, err
}

// Close destroys the objects in the order that verbs require.
func (e *End) Close() error {
	var err error
	if e.QP != nil {
		err = e.QP.Close()
	}
	for _, mr := range e.mrs {
		err = errors.Join(err, mr.Close())
	}
	if e.Recv != nil && e.Recv != e.CQ {
		err = errors.Join(err, e.Recv.Close())
	}
	if e.CQ != nil {
		err = errors.Join(err, e.CQ.Close())
	}
	if e.PD != nil {
		err = errors.Join(err, e.PD.Close())
	}
	return err
}

// Failed returns the error that a failed completion stands for.
func Failed(wc *roce.WC) error {
	switch wc.Status {
	case roce.RetryExcErr:
		return fmt.Errorf("%v failed: %v: the peer's RDMA side does not answer", wc.Opcode, wc.Status)
	case roce.RNRRetryExcErr:
		return fmt.Errorf("%v failed: %v: the peer posted no receives", wc.Opcode, wc.Status)
	case roce.RemAccessErr:
		return fmt.Errorf("%v failed: %v: the peer has deregistered its memory", wc.Opcode, wc.Status)
	case roce.WRFlushErr:
		return fmt.Errorf("%v failed: %v: the connection has ended", wc.Opcode, wc.Status)
	}
	return fmt.Errorf("%v failed: %v", wc.Opcode, wc.Status)
}

// Package ends holds what one end of a transport's connection is made of, and takes it apart in the right order.
package ends

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
)

// End is a queue pair with its completion queues and memory. It owns everything but the device. New, Alloc and Close belong to one goroutine.
type End struct {
	Dev  *roce.Device
	PD   *roce.PD
	CQ   *roce.CQ // of the send queue
	Recv *roce.CQ // of the receive queue; CQ if there is only one
	QP   *roce.QP
	mrs  []*roce.MR
}

// Depths are the sizes of an end's queues: work requests, and completions.
type Depths struct {
	Send, SendCQ int
	Recv, RecvCQ int  // RecvCQ 0: one completion queue for both
	Inline       int  // bytes
	GID          *int // the GID to talk from; see GIDFor
}

// TurnFrom is from how many bytes on a posted block is transmitted at once by a program that drives its device itself: it fills a batch of
// frames so far that waiting for more gains nothing, and the peer works on it while the next one is built.
const TurnFrom = 16 << 10

// New makes a queue pair in INIT.
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

// GIDFor chooses the GID to talk from: the one with the address own if there is one, else the first of the same kind. Nil leaves
// it to the device.
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

// Alloc makes a memory region of size bytes, which lives as long as the end.
func (e *End) Alloc(size int, access roce.Access) (*roce.MR, error) {
	mr, err := e.PD.AllocMR(size, access)
	if err == nil {
		e.mrs = append(e.mrs, mr)
	}
	return mr, err
}

// Close gives everything back, in the order that verbs demand.
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

// Failed is the error that a completion stands for.
func Failed(wc *roce.WC) error {
	switch wc.Status {
	case roce.RetryExcErr:
		return fmt.Errorf("%v failed: %v: the peer's RDMA side does not answer", wc.Opcode, wc.Status)
	case roce.RNRRetryExcErr:
		return fmt.Errorf("%v failed: %v: the peer posted no receives", wc.Opcode, wc.Status)
	case roce.RemAccessErr:
		return fmt.Errorf("%v failed: %v: the peer has taken its memory back", wc.Opcode, wc.Status)
	case roce.WRFlushErr:
		return fmt.Errorf("%v failed: %v: the connection has ended", wc.Opcode, wc.Status)
	}
	return fmt.Errorf("%v failed: %v", wc.Opcode, wc.Status)
}

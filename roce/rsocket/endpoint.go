package rsocket

import (
	"errors"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket/core"
)

// Sizes of an endpoint.
const (
	// sendDepth is the number of outstanding WRITEs with data.
	sendDepth = 256
	// spareReceives are receives for messages that need no credit.
	spareReceives = 16
	// ringAlign is the offset of the receive buffer in the memory that the peer may write, from a
	// page on.
	ringAlign = 4096

	// recvID marks the completions of receives.
	recvID = 1 << 63
)

// endpoint has the verbs objects of a connection. Each connection has its own protection domain,
// so that its peer can write into no memory but its own.
type endpoint struct {
	dev  *roce.Device
	pd   *roce.PD
	cq   *roce.CQ
	qp   *roce.QP
	open *roce.MR // the peer may write: list, map table, and from ringAt on the receive buffer
	send *roce.MR

	manual bool // progress of dev
	ringAt int
	recvs  []roce.RecvWR // of pollBatch receives without memory
}

func newEndpoint(dev *roce.Device, c *Config) (e *endpoint, err error) {
	if dev == nil {
		return nil, errNilDevice
	}
	e = &endpoint{dev: dev, manual: dev.Info().Progress == roce.Manual}
	defer func() {
		if err != nil {
			_ = e.close() // what exists
		}
	}()
	if e.pd, err = dev.AllocPD(); err != nil {
		return e, err
	}
	receives := min(c.Messages+spareReceives, roce.MaxQueueDepth)
	sends := sendDepth + core.ControlDepth
	if e.cq, err = dev.CreateCQ(receives + sends); err != nil {
		return e, err
	}
	e.ringAt = (core.ListLen(c.Mappings) + ringAlign - 1) &^ (ringAlign - 1)
	e.open, err = e.pd.AllocMR(e.ringAt+c.ReadBuffer, roce.LocalWrite|roce.RemoteWrite)
	if err != nil {
		return e, err
	}
	if e.send, err = e.pd.AllocMR(c.WriteBuffer, roce.LocalWrite); err != nil {
		return e, err
	}
	e.qp, err = dev.CreateQP(e.pd, roce.QPConfig{SendCQ: e.cq, SendDepth: sends,
		RecvDepth: receives, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: core.InlineLen,
		GIDIndex: c.GIDIndex})
	if err != nil {
		return e, err
	}
	e.recvs = make([]roce.RecvWR, pollBatch)
	for i := range e.recvs {
		e.recvs[i].ID = recvID
	}
	for left := receives; left > 0 && err == nil; left -= pollBatch {
		err = e.qp.PostRecv(e.recvs[:min(left, pollBatch)]...)
	}
	return e, err
}

// newStream returns the state machine of a connection with this endpoint.
func (e *endpoint) newStream(c *Config) *core.Stream {
	key := uint32(e.open.RKey())
	return core.New(core.Config{
		Credits: c.Messages, RingLen: c.ReadBuffer, SendLen: c.WriteBuffer, SendDepth: sendDepth,
		Maps: c.Mappings,
		List: core.Buffer{Addr: e.open.Addr(), Key: key},
		Ring: core.Buffer{Addr: e.open.Addr() + uint64(e.ringAt), Key: key},
	}, e.open)
}

// close destroys what exists. If the device is closed, it has destroyed everything already.
func (e *endpoint) close() error {
	var errs []error
	if e.qp != nil {
		errs = append(errs, e.qp.Close())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	for _, m := range []*roce.MR{e.open, e.send} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Close())
	}
	if err := errors.Join(errs...); err != nil && e.dev.Err() == nil {
		return err
	}
	return nil
}

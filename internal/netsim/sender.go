package netsim

import (
	"context"
	"fmt"
	"slices"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

// host is the running state of a Sender.
type host interface {
	start() error
	// progress does what is due, and returns how much it did.
	progress() (int, error)
	// nextTimeout returns when progress must be called even if no frame arrives.
	nextTimeout() (int64, bool)
	// bytes returns the payload transferred since the start, by flow.
	bytes() []uint64
	// windows returns the packets that may be in flight, by flow.
	windows() []float64
}

// qpHost is a host with QPs: its endpoint, and that of the receiver for it.
type qpHost struct {
	*Sender
	from, to *endpoint.Endpoint
	posted   []int    // operations, by QP
	done     []uint64 // bytes of completed operations, by QP
}

// newQPHost creates and connects the QPs of a sender.
func newQPHost(s *Sender, from, to *roce.Device, o roce.ConnectOptions) (*qpHost, error) {
	h := &qpHost{Sender: s, posted: make([]int, s.qps()), done: make([]uint64, s.qps())}
	// Operations that are outstanding at the same time write to different memory. Otherwise a
	// device must not place packets of one before all packets of the previous one.
	source, target := h.config(s.Size), h.config(s.Size*s.Depth)
	if s.Op == roce.OpRead {
		source, target = target, source
	}
	var err error
	if h.from, err = endpoint.New(from, source); err != nil {
		return nil, err
	}
	if h.to, err = endpoint.New(to, target); err != nil {
		return nil, err
	}
	return h, endpoint.Connect(context.Background(), h.from, h.to, o)
}

func (h *qpHost) config(memory int) endpoint.Config {
	return endpoint.Config{QPs: h.qps(), SendCQ: 4 * h.Depth * h.qps(), Memory: memory,
		QP: roce.QPConfig{SendDepth: h.Depth, RecvDepth: 2 * h.Depth}}
}

func (h *qpHost) bytes() []uint64 { return slices.Clone(h.done) }

func (h *qpHost) windows() (list []float64) {
	for _, q := range h.from.QPs {
		s, _ := q.Stats() // fails only after Close
		list = append(list, float64(s.Window))
	}
	return list
}

// nextTimeout implements host: only the device has timers.
func (h *qpHost) nextTimeout() (int64, bool) { return 0, false }

// start posts the first operations.
func (h *qpHost) start() error {
	for q := range h.qps() {
		for range h.Depth {
			if err := h.post(q); err != nil {
				return err
			}
		}
	}
	return nil
}

// post posts the next operation of a QP.
func (h *qpHost) post(q int) error {
	slot := h.posted[q] % h.Depth * h.Size
	h.posted[q]++
	source, target := h.from.MR.SGE(0, h.Size), slot
	if h.Op == roce.OpRead {
		source, target = h.from.MR.SGE(slot, h.Size), 0
	}
	if h.Op == roce.OpSend {
		r := roce.RecvWR{SGEs: []roce.SGE{h.to.MR.SGE(target, h.Size)}}
		if err := h.to.QPs[q].PostRecv(r); err != nil {
			return err
		}
	}
	remote := h.to.MR.Remote()
	return h.from.QPs[q].PostSend(roce.SendWR{
		ID: uint64(q), Op: h.Op, Flags: roce.Signaled, SGEs: []roce.SGE{source},
		RemoteAddr: remote.Addr + uint64(target), RKey: remote.RKey,
	})
}

// progress polls the completions, and posts an operation for each. It returns their number.
func (h *qpHost) progress() (done int, err error) {
	var wcs [64]roce.WC
	for h.from.CQ.Len() > 0 {
		for _, wc := range wcs[:h.from.CQ.Poll(wcs[:])] {
			if err := endpoint.StatusError(&wc); err != nil {
				return done, fmt.Errorf("QP %d: %w", wc.ID, err)
			}
			done++
			h.done[wc.ID] += uint64(h.Size)
			if err := h.post(int(wc.ID)); err != nil {
				return done, err
			}
		}
	}
	for h.to.CQ.Len() > 0 {
		h.to.CQ.Poll(wcs[:])
	}
	return done, nil
}

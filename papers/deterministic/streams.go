package deterministic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/flow"
)

// verbsStream sends each message with one RDMA WRITE with immediate data, as soon as it is posted.
type verbsStream struct {
	ends [2]*endpoint.Endpoint
	sent []int64 // when messages were posted, by their number modulo the length
	next uint32  // number of the next message
	wcs  [16]roce.WC
}

func newVerbsStream(s *stream) (v *verbsStream, err error) {
	v = &verbsStream{sent: make([]int64, s.conf.queue)}
	c := endpoint.Config{Memory: s.conf.size,
		QP: roce.QPConfig{SendDepth: s.conf.queue, RecvDepth: s.conf.queue}}
	if s.n.method.classes {
		c.QP.Class = s.conf.priority
	}
	for i, dev := range s.n.bed.Dev {
		if v.ends[i], err = endpoint.New(dev, c); err != nil {
			return v, fmt.Errorf("%v: %w", s, err)
		}
	}
	o := connectOptions
	if err := endpoint.Connect(context.Background(), v.ends[0], v.ends[1], o); err != nil {
		return v, fmt.Errorf("%v: %w", s, err)
	}
	for range s.conf.queue {
		if err := v.ends[1].QP.PostRecv(roce.RecvWR{}); err != nil {
			return v, err
		}
	}
	return v, nil
}

func (v *verbsStream) send(s *stream) error {
	remote := v.ends[1].MR.Remote()
	err := v.ends[0].QP.PostSend(roce.SendWR{Op: roce.OpWriteImm, Flags: roce.Signaled,
		SGEs: []roce.SGE{v.ends[0].MR.SGE(0, s.conf.size)}, Imm: v.next,
		RemoteAddr: remote.Addr, RKey: remote.RKey})
	if err != nil {
		return fmt.Errorf("%v: %w", s, err)
	}
	v.sent[int(v.next)%len(v.sent)] = s.n.now()
	v.next++
	return nil
}

// receive handles completions of both sides.
func (v *verbsStream) receive(s *stream) (work int, err error) {
	for i, e := range v.ends {
		if e == nil || e.CQ.Len() == 0 {
			continue
		}
		for _, wc := range v.wcs[:e.CQ.Poll(v.wcs[:])] {
			work++
			if err := endpoint.StatusError(&wc); err != nil {
				return work, fmt.Errorf("%v: %w", s, err)
			}
			if i == 0 {
				continue
			}
			if err := e.QP.PostRecv(roce.RecvWR{}); err != nil {
				return work, err
			}
			s.arrive(v.sent[int(wc.Imm)%len(v.sent)])
		}
	}
	return work, nil
}

func (v *verbsStream) close() error {
	var errs []error
	for _, e := range v.ends {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	return errors.Join(errs...)
}

// layerStream sends the messages of a channel with a task.
type layerStream struct {
	ch     *flow.Channel
	from   *flow.Sender
	to     *flow.Receiver
	reader *flow.Reader
	task   *flow.Task
}

// firstPort is the RDMA port of the first stream. The others follow.
const firstPort = 7700

func newLayerStream(s *stream) (l *layerStream, err error) {
	l = &layerStream{}
	n := s.n
	if err := l.connect(s); err != nil {
		return l, fmt.Errorf("%v: %w", s, err)
	}
	if l.reader, err = l.to.Channel().NewReader(flow.Each); err != nil {
		return l, err
	}
	c := flow.SendConfig{Name: s.conf.name, Priority: s.conf.priority, To: l.from,
		Part: min(n.part, s.conf.size)}
	if s.conf.shares != nil {
		l.ch, c.Mode = s.conf.shares.layer.ch, flow.Latest
		tick, err := n.sched.Timer(s.conf.name, s.conf.period, time.Microsecond)
		if err != nil {
			return l, err
		}
		c.Inputs = []flow.Input{{Source: tick}}
	} else if l.ch, err = n.layers[0].NewChannel(flow.ChannelConfig{Name: s.conf.name,
		Size: s.conf.size, Slots: s.slots()}); err != nil {
		return l, err
	}
	c.Channel = l.ch
	l.task, err = n.sched.SendTask(c)
	return l, err
}

// slots returns the capacity of the stream's channels.
func (s *stream) slots() int { return min(s.conf.queue, flow.MaxSlots) }

// connect connects a sender and a receiver.
func (l *layerStream) connect(s *stream) error {
	n := s.n
	addr := n.bed.Addr(1, uint16(firstPort+len(n.streams)))
	listener, err := n.bed.Dev[1].Listen(addr, roce.ListenOptions{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	var errs [2]error
	n.bed.Sim.Go(func() {
		q, err := listener.Accept(ctx)
		if errs[1] = err; err == nil {
			l.to, errs[1] = n.layers[1].AcceptRequest(ctx, q, flow.ReceiverConfig{
				Channel: flow.ChannelConfig{Name: s.conf.name, Size: s.conf.size,
					Slots: s.slots(), Overflow: flow.Refuse}})
		}
	})
	n.bed.Sim.Go(func() {
		l.from, errs[0] = n.layers[0].Dial(ctx, addr,
			flow.SenderConfig{Name: s.conf.name, Connect: connectOptions})
	})
	return errors.Join(n.bed.Sim.Run(limit), errs[0], errs[1], listener.Close())
}

// send gives up the oldest message if the channel is full.
func (l *layerStream) send(s *stream) error {
	m, err := l.ch.Reserve()
	if err != nil {
		return fmt.Errorf("%v: %w", s, err)
	}
	return l.ch.Push(m, s.conf.size)
}

func (l *layerStream) receive(s *stream) (work int) {
	if l.reader == nil {
		return 0
	}
	for m := l.reader.Next(); m != nil; m = l.reader.Next() {
		s.arrive(m.Time)
		m.Release()
		work++
	}
	return work
}

func (l *layerStream) close() error {
	var errs []error
	for _, c := range []interface{ Close() error }{l.from, l.to} {
		switch c := c.(type) {
		case *flow.Sender:
			if c != nil {
				errs = append(errs, c.Close())
			}
		case *flow.Receiver:
			if c != nil {
				errs = append(errs, c.Close())
			}
		}
	}
	return errors.Join(errs...)
}

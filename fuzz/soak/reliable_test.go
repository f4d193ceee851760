package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/verify"
	"github.com/gorxe/gorxe/roce"
)

const (
	dataLen  = 24 << 10 // target of WRITEs and READs at the server
	words    = 8        // after it, targets of atomics
	arena    = 64 << 10 // source and destination memory of the client
	slotLen  = 4 << 10  // bytes of a receive
	slots    = 16
	depth    = 16 // work requests posted at once
	maxOp    = 6 << 10
	shortest = 3 // batches of a connection
)

// access are the rights of the server's memory.
const access = endpoint.AllRemote | roce.MWBind | roce.FlushGlobal | roce.RemoteInvalidate

// pair is an RC connection between an honest client and the device under test, and a model of the
// server's memory.
type pair struct {
	w      *world
	r      *rand.Rand
	cl, sv *endpoint.Endpoint
	recv   *roce.MR // at the server
	model  []byte   // of sv.MR
	next   int      // slot of the next receive that completes
	posted int      // receives posted
	ended  bool     // the connection has failed as expected
}

// newPair creates both queue pairs, in state INIT.
func (w *world) newPair(dev [2]*roce.Device, r *rand.Rand) (*pair, error) {
	p := &pair{w: w, r: r}
	gid := r.IntN(len(dev[0].GIDs()))
	qc := roce.QPConfig{SendDepth: depth, RecvDepth: slots, GIDIndex: &gid}
	var err error
	p.cl, err = endpoint.New(dev[1], endpoint.Config{QP: qc, Memory: arena})
	if err != nil {
		return nil, err
	}
	p.sv, err = endpoint.New(dev[0], endpoint.Config{QP: qc, RecvCQ: 4 * slots,
		Memory: dataLen + 8*words, Access: access})
	if err == nil {
		p.recv, err = p.sv.AddMR(slots*slotLen, roce.LocalWrite)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	p.model = make([]byte, p.sv.MR.Len())
	w.n[qps].Add(2)
	w.n[regions].Add(3)
	return p, nil
}

func (p *pair) close() error {
	var errs []error
	for _, e := range []*endpoint.Endpoint{p.cl, p.sv} {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	return errors.Join(errs...)
}

func options(r *rand.Rand) roce.ConnectOptions {
	return roce.ConnectOptions{
		MTU:     []roce.MTU{256, 1024, 4096}[r.IntN(3)],
		Timeout: 15, MinRNRTimer: 1 + r.IntN(8), MaxRdAtomic: 1 + r.IntN(16),
	}
}

// connect connects without the connection manager.
func (p *pair) connect() error {
	o := options(p.r)
	ctx, cancel := p.w.wait()
	defer cancel()
	if err := p.sv.QP.Connect(ctx, p.cl.QP.Local(), o); err != nil {
		return err
	}
	return p.cl.QP.Connect(ctx, p.sv.QP.Local(), o)
}

// reliable is one RC connection.
func (w *world) reliable(r *rand.Rand) error { return w.reliableOn(w.tb.Dev, r) }

func (w *world) reliableOn(dev [2]*roce.Device, r *rand.Rand) (err error) {
	p, err := w.newPair(dev, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.connect(); err != nil {
		return err
	}
	return p.work(shortest + r.IntN(20))
}

// work runs batches, and uses memory windows in between.
func (p *pair) work(batches int) error {
	for i := 0; i < batches && !p.ended; i++ {
		var err error
		if p.r.IntN(6) == 0 {
			err = p.window(i == batches-1 || p.r.IntN(8) == 0)
		} else {
			err = p.batch()
		}
		if err != nil {
			return fmt.Errorf("batch %d of %d: %w", i+1, batches, err)
		}
		p.w.pace.wait()
	}
	return nil
}

// longLived is a connection that lives as long as the test.
type longLived struct {
	w *world
	p *pair
}

func (l *longLived) step(r *rand.Rand) error {
	if l.p == nil {
		p, err := l.w.newPair(l.w.tb.Dev, r)
		if err != nil {
			return err
		}
		if err := p.connect(); err != nil {
			return errors.Join(err, p.close())
		}
		l.p = p
	}
	l.w.targets.set(l.p.sv.QP)
	for range 4 {
		if err := l.p.batch(); err != nil {
			err = errors.Join(err, l.p.close())
			l.p = nil
			return err
		}
	}
	return nil
}

func (l *longLived) close() error {
	if l.p == nil {
		return nil
	}
	return l.p.close()
}

// message is what the server must receive.
type message struct {
	verify.Message
	data []byte // nil for WRITE with immediate
}

// batch is a list of work requests under construction.
type batch struct {
	wrs   []roce.SendWR
	check []func() error // after the completion of each work request
	want  []message
	at    int // used bytes of the arena
	fence bool
}

// batch posts some operations, waits for them, and checks everything that they did.
func (p *pair) batch() error {
	b := &batch{}
	for n := 1 + p.r.IntN(depth); len(b.wrs) < n; {
		p.draw(b)
	}
	b.wrs[len(b.wrs)-1].Flags |= roce.Signaled
	// Sometimes the receives are posted too late, and the peer must try again.
	late := p.r.IntN(8) == 0
	if !late {
		if err := p.postRecvs(len(b.want)); err != nil {
			return err
		}
	}
	if err := p.cl.QP.PostSend(b.wrs...); err != nil {
		return err
	}
	if late {
		if err := p.postRecvs(len(b.want)); err != nil {
			return err
		}
	}
	if err := p.completions(b); err != nil {
		return err
	}
	if err := p.receives(b.want); err != nil {
		return err
	}
	return p.compare()
}

// compare compares the server's memory with the model.
func (p *pair) compare() error {
	if real := p.sv.MR.Bytes(); !bytes.Equal(real, p.model) {
		from, to := verify.Diff(real, p.model)
		return fmt.Errorf("memory differs from the model in bytes %d to %d", from, to)
	}
	return nil
}

// completions waits for the last completion of a batch and checks all of them.
func (p *pair) completions(b *batch) error {
	ctx, cancel := p.w.wait()
	defer cancel()
	done := 0
	for done < len(b.wrs) {
		var wcs [depth]roce.WC
		n, err := p.cl.CQ.Wait(ctx, wcs[:])
		if err != nil {
			return fmt.Errorf("work request %d of %d (%v): %w", done+1, len(b.wrs),
				b.wrs[done].Op, err)
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if err := endpoint.StatusError(wc); err != nil {
				return err
			}
			id := int(wc.ID)
			if id < done || id >= len(b.wrs) || b.wrs[id].Flags&roce.Signaled == 0 {
				return fmt.Errorf("completion of work request %d of %d after %d", id, len(b.wrs),
					done)
			}
			for ; done <= id; done++ {
				if err := b.check[done](); err != nil {
					return fmt.Errorf("%v: %w", b.wrs[done].Op, err)
				}
			}
			if wrong := verify.Send(wc, b.wrs[id].Op, length(&b.wrs[id])); wrong != "" {
				return errors.New(wrong)
			}
			p.w.n[bytesMoved].Add(uint64(wc.ByteLen))
		}
	}
	p.w.n[messages].Add(uint64(done))
	return nil
}

func length(wr *roce.SendWR) int {
	n := len(wr.Inline)
	for _, s := range wr.SGEs {
		n += int(s.Length)
	}
	if wr.Op == roce.OpFlush {
		n = int(wr.Length)
	}
	return n
}

// postRecvs posts n receives at the server.
func (p *pair) postRecvs(n int) error {
	for range n {
		slot := p.posted % slots
		err := p.sv.QP.PostRecv(roce.RecvWR{ID: uint64(slot),
			SGEs: []roce.SGE{p.recv.SGE(slot*slotLen, slotLen)}})
		if err != nil {
			return err
		}
		p.posted++
	}
	return nil
}

// receives waits for messages at the server and checks them.
func (p *pair) receives(want []message) error {
	ctx, cancel := p.w.wait()
	defer cancel()
	for len(want) > 0 {
		var wcs [slots]roce.WC
		n, err := p.sv.RecvCQ.Wait(ctx, wcs[:])
		if err != nil {
			return fmt.Errorf("%d messages missing: %w", len(want), err)
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if err := endpoint.StatusError(wc); err != nil {
				return err
			}
			if len(want) == 0 || int(wc.ID) != p.next%slots {
				return fmt.Errorf("receive %d completed, want %d; %d messages expected", wc.ID,
					p.next%slots, len(want))
			}
			m := &want[0]
			m.SrcQP = p.cl.QP.QPN()
			if wrong := verify.Receive(wc, &m.Message); wrong != "" {
				return errors.New(wrong)
			}
			at := int(wc.ID) * slotLen
			if m.data != nil && !bytes.Equal(p.recv.Bytes()[at:at+len(m.data)], m.data) {
				return fmt.Errorf("data of a SEND of %d bytes differ", len(m.data))
			}
			p.next++
			want = want[1:]
		}
	}
	return nil
}

// take reserves n bytes of the arena.
func (b *batch) take(n int) int {
	at := b.at
	b.at += (n + 7) &^ 7
	return at
}

func (b *batch) add(p *pair, wr roce.SendWR, check func() error) {
	wr.ID = uint64(len(b.wrs))
	if p.r.IntN(2) == 0 {
		wr.Flags |= roce.Signaled
	}
	if check == nil {
		check = func() error { return nil }
	}
	b.wrs, b.check = append(b.wrs, wr), append(b.check, check)
}

// source fills n bytes of the arena with random data.
func (p *pair) source(b *batch, n int) (roce.SGE, []byte) {
	at := b.take(n)
	data := p.cl.MR.Bytes()[at : at+n]
	fill(p.r, data)
	return p.cl.MR.SGE(at, n), data
}

func fill(r *rand.Rand, b []byte) {
	for len(b) > 0 {
		var v [8]byte
		binary.NativeEndian.PutUint64(v[:], r.Uint64())
		b = b[copy(b, v[:]):]
	}
}

// draw adds an operation.
func (p *pair) draw(b *batch) {
	r := p.r
	n := r.IntN(maxOp)
	if r.IntN(2) == 0 {
		n = r.IntN(64)
	}
	n = min(n, arena-16-b.at) // the last operations of a batch are short
	if n < 0 {
		n = 0
	}
	off := r.IntN(dataLen - n + 1)
	remote := p.sv.MR.Remote()
	wr := roce.SendWR{RemoteAddr: remote.Addr + uint64(off), RKey: remote.RKey}
	if b.fence { // a READ that is served again must still find the old data
		wr.Flags |= roce.Fence
	}
	switch r.IntN(10) {
	case 0, 1:
		p.drawSend(b, min(n, slotLen))
	case 2, 3, 4:
		sge, data := p.source(b, n)
		copy(p.model[off:], data)
		wr.Op, wr.SGEs = roce.OpWrite, []roce.SGE{sge}
		if r.IntN(3) == 0 && len(b.want) < slots {
			wr.Op, wr.Imm = roce.OpWriteImm, r.Uint32()
			b.want = append(b.want, message{Message: verify.Message{Op: wr.Op, Len: n,
				Imm: wr.Imm}})
		}
		b.add(p, wr, nil)
	case 5, 6:
		at := b.take(n)
		land, want := p.cl.MR.Bytes()[at:at+n], bytes.Clone(p.model[off:off+n])
		wr.Op, wr.SGEs = roce.OpRead, []roce.SGE{p.cl.MR.SGE(at, n)}
		b.fence = true
		b.add(p, wr, func() error {
			if !bytes.Equal(land, want) {
				return fmt.Errorf("%d bytes at %d differ", n, off)
			}
			return nil
		})
	case 7:
		v := make([]byte, 8)
		fill(r, v)
		off &^= 7
		off = min(off, dataLen-8)
		copy(p.model[off:], v)
		wr.Op, wr.Inline, wr.RemoteAddr = roce.OpAtomicWrite, v, remote.Addr+uint64(off)
		b.add(p, wr, nil)
	case 8:
		p.drawAtomic(b, wr)
	case 9:
		wr.Op, wr.Length = roce.OpFlush, uint32(n)
		wr.Placement, wr.Level = roce.PlaceGlobal, roce.FlushRange
		b.add(p, wr, nil)
	}
}

func (p *pair) drawSend(b *batch, n int) {
	if len(b.want) == slots {
		return
	}
	sge, data := p.source(b, n)
	wr := roce.SendWR{Op: roce.OpSend, SGEs: []roce.SGE{sge}}
	if p.r.IntN(2) == 0 {
		wr.Op, wr.Imm = roce.OpSendImm, p.r.Uint32()
	}
	b.want = append(b.want, message{Message: verify.Message{Op: wr.Op, Len: n, Imm: wr.Imm},
		data: data})
	b.add(p, wr, nil)
}

func (p *pair) drawAtomic(b *batch, wr roce.SendWR) {
	off := dataLen + 8*p.r.IntN(words)
	at := b.take(8)
	word := p.model[off : off+8]
	old := binary.NativeEndian.Uint64(word)
	wr.Op, wr.SwapAdd = roce.OpFetchAdd, p.r.Uint64()
	if p.r.IntN(2) == 0 {
		wr.Op, wr.Compare = roce.OpCmpSwap, old
		if p.r.IntN(4) == 0 {
			wr.Compare++
		}
	}
	binary.NativeEndian.PutUint64(word, verify.Atomic(wr.Op, old, wr.Compare, wr.SwapAdd))
	wr.RemoteAddr = p.sv.MR.Addr() + uint64(off)
	wr.SGEs = []roce.SGE{p.cl.MR.SGE(at, 8)}
	land := p.cl.MR.Bytes()[at : at+8]
	b.add(p, wr, func() error {
		p.w.n[atomics].Add(1)
		if got := binary.NativeEndian.Uint64(land); got != old {
			return fmt.Errorf("old value %#x, want %#x", got, old)
		}
		return nil
	})
}

// one posts a work request on q, waits for its completion and returns it.
func (p *pair) one(q *roce.QP, cq *roce.CQ, wr roce.SendWR) (roce.WC, error) {
	ctx, cancel := p.w.wait()
	defer cancel()
	wr.Flags |= roce.Signaled
	if err := q.PostSend(wr); err != nil {
		return roce.WC{}, err
	}
	return next(ctx, cq)
}

// next waits for one completion.
func next(ctx context.Context, cq *roce.CQ) (roce.WC, error) {
	var wc [1]roce.WC
	_, err := cq.Wait(ctx, wc[:])
	return wc[0], err
}

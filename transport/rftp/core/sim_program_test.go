package core

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

// pattern returns the byte at offset i of the payload of a block.
func pattern(host int, session, seq uint32, i int) byte {
	return byte(host*31 + int(session)*17 + int(seq)*7 + i)
}

// program is a step of the programs of a host.
func (h *simHost) program() {
	s := h.s
	if h.dead || h.m.Err() != nil {
		return
	}
	h.open()
	for range 1 + s.rng.IntN(4) {
		h.send()
	}
	h.messages()
	h.take()
	h.put()
	h.pump()
	h.check()
	s.at(Time(1+s.rng.Int64N(int64(3*ms))), h.program)
}

func (h *simHost) open() {
	r := h.s.rng
	if h.toOpen == 0 || r.IntN(3) != 0 {
		return
	}
	o, err := h.m.Open(fmt.Appendf(nil, "session %d", h.lastID+1))
	if errors.Is(err, ErrSessions) {
		return
	}
	if err != nil {
		h.s.failf("Open() = %v", err)
	}
	h.toOpen--
	h.lastID++
	h.outs = append(h.outs, &simOut{Outgoing: o, left: r.IntN(40), abort: r.IntN(8) == 0,
		refuse: r.IntN(8) == 0})
}

// send sends, ends or aborts something.
func (h *simHost) send() {
	r := h.s.rng
	if len(h.outs) == 0 {
		return
	}
	o := h.outs[r.IntN(len(h.outs))]
	switch {
	case o.Err() != nil || o.ended:
		return
	case o.abort && r.IntN(10) == 0:
		h.s.log("host %d: aborts session %d", h.id, o.ID())
		h.m.AbortSession(o.Outgoing, errors.New("aborted here"), "enough")
		return
	case o.left == 0:
		h.s.log("host %d: ends session %d after %d", h.id, o.ID(), o.sent)
		h.m.End(o.Outgoing)
		return
	}
	i, ok := h.m.GetFree(o.Outgoing)
	if !ok {
		return
	}
	if r.IntN(10) == 0 {
		if err := h.m.PutFree(i); err != nil {
			h.s.failf("PutFree() = %v", err)
		}
		return
	}
	n := r.Uint32N(h.s.cfg.BlockSize + 1)
	seq, err := h.m.Send(o.Outgoing, i, n)
	if err != nil {
		h.s.failf("Send() = %v", err)
	}
	o.left--
	o.sent++
	hd := Header{Session: o.ID(), Seq: seq, Len: n, Offset: uint64(seq) << 40, Tag: n ^ 5}
	binary.BigEndian.PutUint32(hd.Meta[20:], seq)
	hd.Put(h.out[i])
	for k := range n {
		h.out[i][HeaderLen+k] = pattern(h.id, o.ID(), seq, int(k))
	}
}

func (h *simHost) messages() {
	for h.msgs > 0 && h.s.rng.IntN(2) == 0 {
		err := h.m.SendMessage([]byte{byte(h.msgs)})
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil {
			h.s.failf("SendMessage() = %v", err)
		}
		h.msgs--
	}
	for h.s.rng.IntN(3) != 0 {
		b := h.m.NextMessage()
		if b == nil {
			return
		}
		h.gotMsg++
	}
}

// take takes what is ready.
func (h *simHost) take() {
	r := h.s.rng
	var it Item
	for r.IntN(4) != 0 && h.m.GetReady(&it) {
		in := h.ins[it.Session]
		switch it.Kind {
		case Opened:
			if it.Session != h.opened+1 ||
				string(it.Params) != fmt.Sprintf("session %d", it.Session) {
				h.s.failf("host %d: session %d after %d with %q", h.id, it.Session, h.opened,
					it.Params)
			}
			h.opened++
			h.ins[it.Session] = &simIn{got: map[uint32]bool{}}
		case Data:
			h.data(&it, in)
			h.held = append(h.held, it)
		case Ended:
			h.s.log("host %d: session %d of the peer ended after %d", h.id, it.Session, it.Blocks)
			in.over = true
			if in.refused || uint32(len(in.got)) != it.Blocks {
				h.s.failf("host %d: session %d ends after %d blocks, %d have come", h.id,
					it.Session, it.Blocks, len(in.got))
			}
		case Aborted:
			in.over = true
			if in.refused || it.Text != "enough" {
				h.s.failf("host %d: session %d aborted: %q", h.id, it.Session, it.Text)
			}
		}
		h.check()
	}
}

func (h *simHost) data(it *Item, in *simIn) {
	b := h.pool[it.Block*h.stride:]
	var hd Header
	hd.Parse(b)
	if in == nil || in.over || in.refused || in.got[hd.Seq] || hd.Session != it.Session ||
		hd.Len != it.Len || hd.Offset != uint64(hd.Seq)<<40 || hd.Tag != hd.Len^5 {
		h.s.failf("host %d: block %+v of session %d, known as %+v", h.id, hd, it.Session, in)
	}
	in.got[hd.Seq] = true
	h.whole(it, &hd)
	if o := h.peer.out_(it.Session); o.refuse && h.s.rng.IntN(8) == 0 {
		h.s.log("host %d: refuses session %d", h.id, it.Session)
		if err := h.m.RefuseSession(it.Session, "no"); err != nil && !errors.Is(err, ErrEnded) {
			h.s.failf("RefuseSession() = %v", err)
		} else if err == nil {
			in.refused = true
		}
	}
}

// whole checks the payload of a block.
func (h *simHost) whole(it *Item, hd *Header) {
	b := h.pool[it.Block*h.stride+HeaderLen:]
	for k := range hd.Len {
		if b[k] != pattern(h.peer.id, hd.Session, hd.Seq, int(k)) {
			h.s.failf("host %d: byte %d of block %d of session %d is wrong", h.id, k, hd.Seq,
				hd.Session)
		}
	}
}

// out_ returns the model of a session.
func (h *simHost) out_(id uint32) *simOut { return h.outs[id-1] }

// put returns some blocks, unchanged since they were taken.
func (h *simHost) put() {
	r := h.s.rng
	for len(h.held) > 0 && r.IntN(3) != 0 {
		i := r.IntN(len(h.held))
		it := h.held[i]
		h.held[i] = h.held[len(h.held)-1]
		h.held = h.held[:len(h.held)-1]
		var hd Header
		hd.Parse(h.pool[it.Block*h.stride:])
		h.whole(&it, &hd)
		if err := h.m.PutReady(it.Block); err != nil {
			h.s.failf("PutReady() = %v", err)
		}
		h.check()
	}
}

// idle reports whether a host has nothing left to do.
func (h *simHost) idle() bool {
	if h.dead || h.m.Err() != nil {
		return true
	}
	for _, o := range h.outs {
		if !o.Done() {
			return false
		}
	}
	return h.toOpen == 0 && h.msgs == 0
}

// run runs a scenario to its end.
func (s *sim) run() {
	const limit = 600e9 // virtual time in which everything ends
	for s.q.Len() > 0 && s.now < limit {
		s.now = s.q.Next()
		s.q.Take()()
		for _, h := range s.hosts {
			if err := h.m.Err(); err != nil && s.fault == "" {
				s.failf("host %d: %v", h.id, err)
			}
		}
		if s.hosts[0].idle() && s.hosts[1].idle() && s.quiet() {
			s.final()
			return
		}
	}
	for _, h := range s.hosts {
		for _, o := range h.outs {
			s.t.Logf("host %d: session %d: %+v", h.id, o.ID(), *o.Outgoing)
		}
	}
	s.failf("not over after %v ms: %v, %v", s.now/ms, s.hosts[0].m.Err(), s.hosts[1].m.Err())
}

// quiet asks the hosts to finish, and reports whether they have.
func (s *sim) quiet() bool {
	all := true
	for _, h := range s.hosts {
		if h.dead || h.m.Err() != nil {
			continue
		}
		h.m.Finish()
		h.pump()
		all = all && h.m.Finished() && h.m.PeerFinished()
	}
	return all
}

// final checks what must hold at the end.
func (s *sim) final() {
	for _, h := range s.hosts {
		err := h.m.Err()
		switch {
		case h.dead:
			continue
		case err != nil && s.fault == "":
			s.failf("host %d: %v", h.id, err)
		case errors.Is(err, ErrPeer):
			s.failf("host %d: %v of an honest peer", h.id, err)
		case err != nil:
			continue
		}
		k, p := &h.m.snk, &h.peer.m.src
		if p.requested != k.requested ||
			(s.cfg.Mode == Paper && (p.requested != p.answered || k.owed)) ||
			(s.cfg.Mode == OnDemand && p.requested != p.grants) {
			s.failf("host %d: asked for %d credits, %d answered, %d granted", h.peer.id,
				p.requested, p.answered, p.grants)
		}
		if len(k.sessions) != 0 || len(h.m.src.sessions) != 0 || len(h.held) != 0 ||
			k.complete != 0 {
			s.failf("host %d: sessions or blocks are left", h.id)
		}
		for i := range h.m.src.blocks {
			if st := h.m.src.blocks[i].state; st != Free {
				s.failf("host %d: block %d of the source is %v", h.id, i, st)
			}
		}
		s.outcome(h)
	}
}

// outcome checks that the sessions of a host ended as the programs wanted.
func (s *sim) outcome(h *simHost) {
	for _, o := range h.outs {
		in := h.peer.ins[o.ID()]
		var refused *AbortError
		switch {
		case errors.As(o.Err(), &refused):
			if !in.refused || refused.Text != "no" {
				s.failf("session %d: %v, but the peer did not refuse it", o.ID(), o.Err())
			}
		case o.Err() != nil:
			if !o.abort {
				s.failf("session %d: %v", o.ID(), o.Err())
			}
		case !in.over || len(in.got) != o.sent:
			s.failf("session %d: %d of %d blocks arrived", o.ID(), len(in.got), o.sent)
		}
	}
}

func TestSim(t *testing.T) {
	if *simSeed >= 0 {
		newSim(t, uint64(*simSeed), true).run()
		return
	}
	for seed := range *simSeeds {
		newSim(t, seed, false).run()
	}
}

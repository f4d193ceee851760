package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
)

// With a path without headers, a packet starts with its BTH.
func TestBarePath(t *testing.T) {
	k := newTalk(t, RC)
	p := k.q.fullPath()
	a := p.Address()
	k.q.setPath(frame.NewBarePath(&a))
	k.post(k.wr(1, OpWrite, 13))
	k.HandleDoorbells(k.now)
	var buf [2048]byte
	tx := k.PollTransmit(k.now, buf[:])
	if tx == nil || tx.NetLen != 0 {
		t.Fatalf("PollTransmit() = %+v, want a packet without network headers", tx)
	}
	var got bth.Packet
	must(t, got.Parse(buf[:tx.Len]))
	k.equal("packet", k.heard(&got), "RDMA WRITE Only +0 dma=13 ask 13B")
}

// QPs with the same peer share a path, and each keeps its source port.
func TestSharedPath(t *testing.T) {
	w := newWorld(t, 1)
	as, _ := w.crowd(3)
	e := w.ends[0]
	for i, q := range as {
		p := w.path(0)
		p.SetSourcePort(0xc000 + uint16(i))
		must(t, q.Modify(w.now, &Attr{Path: p}, AttrPath))
	}
	if len(e.paths) != 1 || as[0].path != as[2].path {
		t.Errorf("%d shared paths, want 1", len(e.paths))
	}
	for i, q := range as {
		if p := q.Query().Path; p.SourcePort() != 0xc000+uint16(i) {
			t.Errorf("QP %d has source port %#x", i, p.SourcePort())
		}
		e.DestroyQP(q)
	}
	if len(e.paths) != 0 {
		t.Errorf("%d shared paths after the QPs were destroyed", len(e.paths))
	}
}

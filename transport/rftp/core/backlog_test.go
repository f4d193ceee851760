package core

import "testing"

// TestBacklog checks that GetFree stops at the backlog, also before there are credits, and tells
// when there are blocks again.
func TestBacklog(t *testing.T) {
	m, err := New(1, Config{BlockSize: 1000, QPs: 1, SourceBlocks: 5, Sessions: 2})
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{T: t, m: m, now: 1, last: map[Type][]byte{}}
	v.pump()
	o, err := m.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	m.SetBacklog(3)
	send := func() int {
		t.Helper()
		i, ok := m.GetFree(o)
		if !ok {
			t.Fatal("GetFree() = false, want a block")
		}
		if _, err := m.Send(o, i, 10); err != nil {
			t.Fatal(err)
		}
		v.pump()
		return i
	}
	// A program that is faster than the peer's Accept must not fill the whole pool.
	for range 3 {
		send()
	}
	if i, ok := m.GetFree(o); ok {
		t.Fatalf("GetFree() = %d with 3 loaded blocks, no credits and a backlog of 3, want none", i)
	}
	m.SetBacklog(2)
	v.send(TypeAccept, v.accept(Proactive, 6)) // grants all but one
	m.Changed()
	if i, ok := m.GetFree(o); ok {
		t.Fatalf("GetFree() = %d with 3 posted blocks and a backlog of 2, want none", i)
	}
	last := -1
	for i := range m.src.blocks {
		if m.src.blocks[i].state == Waiting && m.src.posted() > 1 {
			m.WriteDone(i)
			last = i
		}
	}
	if m.Changed()&FreeChanged == 0 {
		t.Error("Changed() does not have FreeChanged after WRITEs have completed")
	}
	if i := send(); i != last {
		t.Errorf("GetFree() = %d, want block %d, which was last used", i, last)
	}
	if _, ok := m.GetFree(o); ok {
		t.Error("GetFree() = true with 2 posted blocks and a backlog of 2, want false")
	}
	m.SetBacklog(0)
	if m.Changed()&FreeChanged == 0 {
		t.Error("Changed() does not have FreeChanged after SetBacklog(0)")
	}
	send()
}

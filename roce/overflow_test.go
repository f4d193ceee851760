package roce

import (
	"bytes"
	"testing"

	"github.com/gorxe/gorxe/xdp/veth"
)

// A receiver with a small receive ring that does not run for a while loses packets. They are
// counted, all data arrives, and the device works as before.
func TestReceiveRingOverflow(t *testing.T) {
	const writes, size, rounds = 32, 8 << 10, 3
	pair := newVeth(t, veth.Options{})
	c := rigConfig{mem: writes * size, opts: []Option{WithProgress(Manual)}}
	a := openEnd(t, &pair.A, XDPOptions{}, c)
	b := openEnd(t, &pair.B, XDPOptions{RingSize: 64}, c)
	connect(t, a.qp, b.qp)
	remote := b.mr.Remote()
	for round := range rounds {
		want := fill(a.mr.Bytes(), uint64(round)+1)
		for i := range uint64(writes) {
			must(t, a.qp.PostSend(SendWR{ID: i, Op: OpWrite, Flags: Signaled,
				SGEs: []SGE{a.mr.SGE(int(i*size), size)}, RemoteAddr: remote.Addr + i*size,
				RKey: remote.RKey}))
		}
		for range 100 { // b does not run
			a.Progress()
		}
		for range writes {
			if wc := poll(t, 1, a.cq, b.cq)[0]; wc.Status != Success {
				t.Fatalf("round %d: %+v", round, wc)
			}
		}
		if !bytes.Equal(b.mr.Bytes(), want) {
			t.Errorf("round %d: the data differs", round)
		}
	}
	got := b.Counters()
	if got.Port.RxDropped == 0 {
		t.Error("no packet was lost, so this tests nothing")
	}
	if got.BadRKey != 0 || got.SentErrNAK != 0 {
		t.Errorf("the receiver refused requests: %+v", got.EngineCounters)
	}
	conversation(t, a, b)
	conversation(t, b, a)
}

package statusbyte

import (
	"testing"

	"github.com/gorxe/gorxe/loopback"
)

// One-sided throughout: however much is sent, the receiver's device completes nothing, needs no
// receive, and asks for nothing.
func TestReceiverDoesNothing(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	cfg := Config{Blocks: 3, BlockSize: 5000}
	s, r := pair(t, a, b, cfg, cfg)
	ctx := within(t)
	const packets = 100
	for n := range packets {
		if err := s.Write(ctx, 0, content(0, n, 5000)); err != nil {
			t.Fatal(err)
		}
		blk, err := r.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		blk.Release()
	}
	c := b.Counters()
	if c.Completions != 0 || c.SentRNR != 0 || r.ep.CQ.Len() != 0 {
		t.Errorf("%d completions, %d RNR NAKs, %d in the CQ", c.Completions, c.SentRNR, r.ep.CQ.Len())
	}
	if _, err := s.Free(ctx); err != nil { // whatever is under way has come back then
		t.Fatal(err)
	}
	// One completion a packet and one a READ, of which there is one for three packets: one-sided,
	// and few.
	if st := s.Stats(); st.Packets != packets || st.Syncs < packets/3-1 || a.Counters().Completions != st.Packets+st.Syncs {
		t.Errorf("%+v, %d completions", st, a.Counters().Completions)
	}
}

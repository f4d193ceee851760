package statusbyte

import (
	"testing"

	"github.com/gorxe/gorxe/loopback"
)

// One-sided only: however much is sent, the receiver's device has no completions, needs no receives
// and sends no requests.
func TestReceiverIsPassive(t *testing.T) {
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
		t.Errorf("%d completions, %d RNR NAKs, %d in the CQ", c.Completions, c.SentRNR,
			r.ep.CQ.Len())
	}
	if _, err := s.Free(ctx); err != nil { // everything outstanding has completed then
		t.Fatal(err)
	}
	// One completion per packet and one per READ, of which there is one for three packets.
	if st := s.Stats(); st.Packets != packets || st.Syncs < packets/3-1 ||
		a.Counters().Completions != st.Packets+st.Syncs {
		t.Errorf("%+v, %d completions", st, a.Counters().Completions)
	}
}

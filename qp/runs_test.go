package qp

import (
	"slices"
	"testing"
)

// On a port that sends runs, the engine says which packets end a message, and how long it is. It
// says nothing of messages of one packet.
func TestEnded(t *testing.T) {
	for _, c := range []struct {
		runs bool
		want []int
	}{{true, []int{0, 0, 3, 0, 0, 2}}, {false, []int{0, 0, 0, 0, 0, 0}}} {
		w := newWorld(t, 1, func(cfg *Config) { cfg.Runs = c.runs })
		e := w.ends[0]
		va, key := w.ends[1].remote(0)
		q, _ := w.pair(RC, func(_ *InitAttr, at *Attr) { at.PathMTU = 256 })
		for _, n := range []int{3 * 256, 256, 512} {
			w.post(q, SendWR{Op: OpWrite, SGEs: []SGE{e.sge(0, n)}, RemoteAddr: va, RKey: key})
		}
		e.HandleDoorbells(0)
		var buf [8192]byte
		var got []int
		for e.HasTransmit(0) {
			tx := e.PollTransmit(0, buf[:])
			if tx == nil {
				break
			}
			got = append(got, tx.Ended)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("Runs = %v: messages end with lengths %v, want %v", c.runs, got, c.want)
		}
	}
}

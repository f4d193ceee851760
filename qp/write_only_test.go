package qp

import (
	"bytes"
	"testing"
)

// The straight way of one-packet WRITEs builds the same packets as the general one.
func TestWriteOnlyIsPutData(t *testing.T) {
	t.Run("SGE", func(t *testing.T) { writeOnly(t, func(*SendWR) {}) })
	t.Run("inline", func(t *testing.T) {
		writeOnly(t, func(wr *SendWR) {
			if n := wr.SGEs[0].Length; n > 0 {
				wr.SGEs, wr.Inline = nil, bytes.Repeat([]byte{0xa5}, int(n))
			}
		})
	})
}

func writeOnly(t *testing.T, change func(*SendWR)) {
	k := newTalk(t, RC)
	for i := range k.mem {
		k.mem[i] = byte(i*7 + i>>8) // no two places alike
	}
	for _, n := range []int{0, 1, 2, 3, 4, 5, 8, 63, 64, 65, 255, 256} {
		for _, flags := range []SendFlags{0, Solicited} {
			for _, ask := range []bool{false, true} {
				wr := k.wr(1, OpWrite, n)
				wr.Flags = flags
				change(&wr)
				if _, err := k.q.Post([]SendWR{wr}); err != nil {
					t.Fatal(err)
				}
				w := k.q.sq.at(k.q.sq.cur)
				got, want := make([]byte, 512), make([]byte, 512)
				total, netLen, st := k.q.putWriteOnly(got, w, ask)
				total2, netLen2, st2 := k.q.putData(want, nil, k.q.destQP, w, k.q.nxt, 0, uint32(n), ask)
				if total != total2 || netLen != netLen2 || st != Success || st2 != Success || !bytes.Equal(got[:total], want[:total]) {
					t.Errorf("%d bytes, flags %v, ask %v:\n%x (%d, %s)\n%x (%d, %s)", n, flags, ask, got[:total], netLen, st, want[:total2], netLen2, st2)
				}
				k.q.Ring()
				k.listen() // it leaves, and the next one follows
			}
		}
	}
}

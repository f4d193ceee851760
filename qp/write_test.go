package qp

import (
	"bytes"
	"testing"
)

// The straight way of WRITEs builds the same packets as the general one.
func TestPutWriteIsPutData(t *testing.T) {
	t.Run("SGE", func(t *testing.T) { putWrite(t, func(*SendWR) {}) })
	t.Run("inline", func(t *testing.T) {
		putWrite(t, func(wr *SendWR) {
			if n := wr.SGEs[0].Length; n > 0 {
				wr.SGEs, wr.Inline = nil, make([]byte, n)
				for i := range wr.Inline {
					wr.Inline[i] = byte(i*5 + i>>8)
				}
			}
		})
	})
}

func putWrite(t *testing.T, change func(*SendWR)) {
	const mtu = talkMTU
	k := newTalk(t, RC)
	for i := range k.mem {
		k.mem[i] = byte(i*7 + i>>8) // no two places alike
	}
	for _, n := range []int{0, 1, 2, 3, 4, 5, 8, 63, 64, 65, mtu - 1, mtu, mtu + 1, 2*mtu - 3, 2 * mtu, 2*mtu + 2, 3 * mtu} {
		for _, flags := range []SendFlags{0, Solicited} {
			for _, ask := range []bool{false, true} {
				k.renew(RC, func(ia *InitAttr, _ *Attr) { ia.MaxInline = 3 * mtu })
				wr := k.wr(1, OpWrite, n)
				wr.Flags = flags
				change(&wr)
				if _, err := k.q.Post([]SendWR{wr}); err != nil {
					t.Fatal(err)
				}
				w := k.q.sq.at(0)
				for off := 0; off == 0 || off < n; off += mtu {
					part := uint32(min(n-off, mtu))
					got, want := bytes.Repeat([]byte{0xff}, 512), bytes.Repeat([]byte{0x55}, 512) // used before: pads have to be written
					total, netLen, st := k.q.putWrite(got, w, uint32(off), part, ask)
					total2, netLen2, st2 := k.q.putData(want, nil, k.q.destQP, w, k.q.nxt, uint32(off), part, ask)
					if total != total2 || netLen != netLen2 || st != Success || st2 != Success || !bytes.Equal(got[:total], want[:total]) {
						t.Errorf("%d bytes from %d, flags %v, ask %v:\n%x (%d, %s)\n%x (%d, %s)", n, off, flags, ask, got[:total], netLen, st, want[:total2], netLen2, st2)
					}
				}
			}
		}
	}
}

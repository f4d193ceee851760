package qp

import (
	"bytes"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// Each packet of a WRITE has the opcode of its position, a RETH if it is the first, its part of the
// message, and a pad of zeros, whatever the buffer held before.
func TestWritePackets(t *testing.T) {
	t.Run("SGE", func(t *testing.T) { testWritePackets(t, func(*SendWR) {}) })
	t.Run("inline", func(t *testing.T) {
		testWritePackets(t, func(wr *SendWR) {
			if n := wr.SGEs[0].Length; n > 0 {
				wr.SGEs, wr.Inline = nil, make([]byte, n)
				for i := range wr.Inline {
					wr.Inline[i] = byte(i*5 + i>>8)
				}
			}
		})
	})
}

func testWritePackets(t *testing.T, change func(*SendWR)) {
	const mtu = talkMTU
	k := newTalk(t, RC)
	for i := range k.mem {
		k.mem[i] = byte(i*7 + i>>8) // no two regions are alike
	}
	for _, n := range []int{0, 1, 2, 3, 4, 5, 8, 63, 64, 65, mtu - 1, mtu, mtu + 1, 2*mtu - 3,
		2 * mtu, 2*mtu + 2, 3 * mtu} {
		for _, flags := range []SendFlags{0, Solicited} {
			for _, ask := range []bool{false, true} {
				k.renew(RC, func(ia *InitAttr, _ *Attr) { ia.MaxInline = 3 * mtu })
				wr := k.wr(1, OpWrite, n)
				wr.Flags = flags
				change(&wr)
				msg := wr.Inline
				if msg == nil {
					at := int(wr.SGEs[0].Addr - k.mr.Addr())
					msg = k.mem[at : at+n]
				}
				if _, err := k.q.Post([]SendWR{wr}); err != nil {
					t.Fatal(err)
				}
				for off := 0; off == 0 || off < n; off += mtu {
					part := min(n-off, mtu)
					b := bytes.Repeat([]byte{0x55}, 512)
					total, netLen, st := k.q.putData(b, 0, k.q.nxt, uint32(off), uint32(part), ask)
					var p bth.Packet
					if err := p.Parse(b[netLen:total]); err != nil || st != Success {
						t.Fatalf("%d bytes from %d: status %s, %v", n, off, st, err)
					}
					last := off+part == n
					op := bth.RequestOpcode(bth.RC, bth.OpWrite, off == 0, last, false, false)
					if p.BTH.Opcode() != op || p.BTH.AckReq() != ask ||
						p.BTH.Solicited() != (last && flags != 0) || p.BTH.PadCount() != -part&3 {
						t.Errorf("%d bytes from %d: BTH %x, want %v with flags %v, ask %v", n, off,
							b[netLen:netLen+bth.HeaderLen], op, flags, ask)
					}
					if off == 0 && (p.RETH().VA() != wr.RemoteAddr || p.RETH().RKey() != wr.RKey ||
						p.RETH().DMALen() != uint32(n)) {
						t.Errorf("%d bytes: wrong RETH %x", n, b[netLen+bth.HeaderLen:total])
					}
					if !bytes.Equal(p.Payload, msg[off:off+part]) {
						t.Errorf("%d bytes from %d: wrong payload", n, off)
					}
					if pad := b[total-p.BTH.PadCount() : total]; !bytes.Equal(pad,
						make([]byte, len(pad))) {
						t.Errorf("%d bytes from %d: pad % x, want zeros", n, off, pad)
					}
				}
			}
		}
	}
}

//go:build interop

package interop_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/interop/peer"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// rawQPN is the QPN of the raw peer.
const rawQPN = 0x77

// oddMTU makes messages of a few kilobytes span several packets.
const oddMTU = 1024

// raw is a peer without a protocol: it sends and receives single packets, valid or not, on the
// other side of a veth pair.
type raw struct {
	t    *testing.T
	port *xdp.Port
	enc  *frame.Encoder
	dec  *frame.Decoder
	head [bth.MaxNetHeader]byte
	n    int // length of head
	to   bth.QPN
	psn  bth.PSN // the first PSN that the raw peer sends
	gpsn bth.PSN // the first PSN that gorxe sends
}

// got is a packet that gorxe sent.
type got struct {
	op      bth.Opcode
	psn     bth.PSN
	ackReq  bool
	synd    bth.Syndrome
	msn     bth.MSN
	va      uint64
	n       uint32
	atomic  uint64
	payload []byte
}

func (g got) String() string { return fmt.Sprintf("%v psn %#x", g.op, uint32(g.psn)) }

// oddRig is gorxe connected to raw, with PSNs that the scenario chooses.
type oddRig struct {
	*raw
	dev *roce.Device
	pd  *roce.PD
	cq  *roce.CQ
	mr  *roce.MR
	qp  *roce.QP
}

// newOddRig opens both sides. The Local ACK Timeout is 67 ms.
func newOddRig(t *testing.T, first bth.PSN, v6 bool) *oddRig {
	t.Helper()
	if os.Geteuid() != 0 {
		if *mustFlag {
			t.Fatal("AF_XDP needs root")
		}
		t.Skip("AF_XDP needs root")
	}
	pair, err := veth.New(veth.Options{MTU: 1500})
	check(t, err)
	t.Cleanup(func() { _ = pair.Close() })
	o := &oddRig{raw: &raw{t: t, enc: new(frame.Encoder), dec: new(frame.Decoder), psn: first,
		gpsn: first}}
	o.port, err = xdp.Open(pair.B.Iface, xdp.Options{NetNS: pair.B.Fd()})
	check(t, err)
	t.Cleanup(func() { _ = o.port.Close() })
	o.dev, err = roce.Open(pair.A.Iface, roce.WithXDP(roce.XDPOptions{NetNS: pair.A.Fd()}))
	check(t, err)
	t.Cleanup(func() { _ = o.dev.Close() })
	o.pd, err = o.dev.AllocPD()
	check(t, err)
	o.cq, err = o.dev.CreateCQ(64)
	check(t, err)
	o.mr, err = o.pd.AllocMR(64<<10,
		roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic)
	check(t, err)
	o.qp, err = o.dev.CreateQP(o.pd, roce.QPConfig{SendCQ: o.cq})
	check(t, err)
	here, there := bth.GIDFromAddr(pair.B.IPv4.Addr()), bth.GIDFromAddr(pair.A.IPv4.Addr())
	if v6 {
		here, there = bth.GIDFromAddr(pair.B.IPv6.Addr()), bth.GIDFromAddr(pair.A.IPv6.Addr())
	}
	o.n = frame.PutHeaders(o.head[:], &frame.Address{
		SrcMAC: bth.MAC(pair.B.MAC), DstMAC: bth.MAC(pair.A.MAC), Src: here, Dst: there,
		SrcPort: 0xc777, HopLimit: 64,
	})
	o.to = o.qp.QPN()
	o.connect(here)
	return o
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connect uses the steps of verbs, because they allow the caller to choose the PSNs.
func (o *oddRig) connect(remote bth.GID) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	path, _, err := o.dev.ResolvePath(ctx, -1, remote, roce.PathOptions{})
	check(o.t, err)
	check(o.t, o.qp.Modify(&roce.Attr{
		State: roce.StateRTR, Path: *path, PathMTU: oddMTU, DestQPN: rawQPN, RQPSN: o.psn,
		MaxDestRdAtomic: 4, MinRNRTimer: 12,
	}, roce.AttrState|roce.AttrPath|roce.AttrPathMTU|roce.AttrDestQPN|roce.AttrRQPSN|roce.AttrMaxDestRdAtomic|roce.AttrMinRNRTimer))
	check(o.t, o.qp.Modify(&roce.Attr{
		State: roce.StateRTS, SQPSN: o.gpsn, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 4,
	}, roce.AttrState|roce.AttrSQPSN|roce.AttrTimeout|roce.AttrRetryCnt|roce.AttrRNRRetry|roce.AttrMaxRdAtomic))
}

// send sends one packet: headers after the BTH, and payload.
func (r *raw) send(op bth.Opcode, psn bth.PSN, ackReq bool, ext, payload []byte) {
	r.t.Helper()
	var b [1]driver.Buf
	if r.port.Alloc(b[:]) != 1 {
		r.t.Fatal("raw peer: no transmit buffer")
	}
	f := append(b[0].B[:0], r.head[:r.n]...)
	pad := -len(payload) & 3
	f = f[:r.n+bth.HeaderLen]
	bth.PutBTH(f[r.n:], &bth.BTHFields{Opcode: op, AckReq: ackReq, PadCount: uint8(pad),
		PKey: bth.DefaultPKey, DestQP: r.to, PSN: psn})
	f = append(append(append(f, ext...), payload...), make([]byte, pad+bth.ICRCLen)...)
	r.enc.Finish(f, r.n)
	b[0].B = f
	if n, err := r.port.Send(b[:]); n != 1 {
		r.t.Fatalf("raw peer: send: %v", err)
	}
}

// next returns the next packet that gorxe sends within d; nil: none.
func (r *raw) next(d time.Duration) *got {
	r.t.Helper()
	end := time.Now().Add(d)
	for {
		var b [1]driver.Buf
		if r.port.Receive(b[:]) == 1 {
			var p bth.Packet
			reason := r.dec.Decode(b[0].B, &p)
			if reason != frame.ReasonOK {
				r.t.Fatalf("raw peer: gorxe sent a bad packet: %v", reason)
			}
			g := &got{
				op: p.BTH.Opcode(), psn: p.BTH.PSN(), ackReq: p.BTH.AckReq(),
				synd: p.AETH().Syndrome(), msn: p.AETH().MSN(),
				va: p.RETH().VA(), n: p.RETH().DMALen(), atomic: p.AtomicAckETH().Original(),
				payload: bytes.Clone(p.Payload),
			}
			r.port.Release(b[:])
			return g
		}
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		check(r.t, r.port.Wait(left))
	}
}

// want receives packets until one of that opcode and PSN arrives. It skips retransmissions, which
// any requester may send.
func (r *raw) want(op bth.Opcode, psn bth.PSN) *got {
	r.t.Helper()
	var seen []string
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		g := r.next(time.Until(end))
		if g == nil {
			break
		}
		if g.op == op && g.psn == psn {
			return g
		}
		seen = append(seen, g.String())
	}
	r.t.Fatalf("raw peer: waited for %v psn %#x, saw %q", op, uint32(psn), seen)
	return nil
}

// quiet drops what gorxe still sends until nothing has arrived for d.
func (r *raw) quiet(d time.Duration) (n int) {
	for r.next(d) != nil {
		n++
	}
	return n
}

func aeth(s bth.Syndrome, m bth.MSN) []byte {
	b := make([]byte, 4)
	bth.PutAETH(b, s, m)
	return b
}

func reth(va uint64, key roce.RKey, n int) []byte {
	b := make([]byte, 16)
	bth.PutRETH(b, va, key, uint32(n))
	return b
}

func fetchAdd(va uint64, key roce.RKey, add uint64) []byte {
	b := make([]byte, 28)
	bth.PutAtomicETH(b, va, key, add, 0)
	return b
}

func atomicAck(m bth.MSN, original uint64) []byte {
	return binary.BigEndian.AppendUint64(aeth(bth.ACKNoLimit, m), original)
}

// ack acknowledges everything up to psn.
func (r *raw) ack(psn bth.PSN) { r.send(bth.RCAck, psn, false, aeth(bth.ACKNoLimit, 0), nil) }

func (r *raw) nak(psn bth.PSN, code bth.NAKCode) {
	r.send(bth.RCAck, psn, false, aeth(bth.NAKSyndrome(code), 0), nil)
}

// post posts one signaled request on n bytes at offset off of gorxe's region.
func (o *oddRig) post(id uint64, op roce.Op, off, n int) {
	o.t.Helper()
	check(o.t, o.qp.PostSend(roce.SendWR{
		ID: id, Op: op, Flags: roce.Signaled, SGEs: []roce.SGE{o.mr.SGE(off, n)},
		RemoteAddr: 0x1000, RKey: 0x1234, SwapAdd: 1,
	}))
}

// done waits for one completion.
func (o *oddRig) done(id uint64) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var w [1]roce.WC
	if _, err := o.cq.Wait(ctx, w[:]); err != nil || w[0].ID != id || w[0].Status != roce.Success {
		o.t.Fatalf("gorxe: completion of request %d %v (%v), want that of %d", w[0].ID, w[0].Status,
			err, id)
	}
}

// notDone fails if something has completed.
func (o *oddRig) notDone() {
	o.t.Helper()
	var w [1]roce.WC
	if o.cq.Poll(w[:]) > 0 {
		o.t.Fatalf("gorxe: request %d completed too early (%v)", w[0].ID, w[0].Status)
	}
}

// pattern returns n bytes of a seed.
func pattern(seed uint32, n int) []byte {
	b := make([]byte, n)
	peer.Fill(b, seed)
	return b
}

// TestOddPackets sends packets that no correct NIC sends, or that a bad link makes of correct ones,
// with PSNs in the middle of the space and PSNs that wrap around within the scenario.
func TestOddPackets(t *testing.T) {
	for _, c := range []struct {
		name string
		role string
		talk func(o *oddRig)
	}{
		{"ghost ACKs", "active", oddGhostACKs},
		{"ACK beyond what was sent", "active", oddACKBeyond},
		{"coalesced ACK", "active", oddCoalescedACK},
		{"implied NAK: an ACK after an unanswered READ", "active", oddImpliedNAKByACK},
		{"implied NAK: READ responses out of order", "active", oddImpliedNAKByRead},
		{"implied ACK: a READ response after a WRITE", "active", oddImpliedACK},
		{"READ retried in part, answered MIDDLE-LAST", "active",
			func(o *oddRig) { oddPartialRead(o, bth.RCReadResponseMiddle) }},
		{"READ retried in part, answered FIRST-LAST", "active",
			func(o *oddRig) { oddPartialRead(o, bth.RCReadResponseFirst) }},
		{"READ responses twice", "active", oddReadTwice},
		{"atomic response twice", "active", oddAtomicTwice},
		{"NAK during a retry after a timeout", "active", oddNAKDuringRetry},
		{"RNR NAK of what is acknowledged", "active", oddGhostRNR},
		{"duplicate READ", "passive", oddDuplicateRead},
		{"duplicate READ of a part", "passive", oddDuplicateReadPart},
		{"duplicate atomic", "passive", oddDuplicateAtomic},
		{"duplicate SEND and WRITE", "passive", oddDuplicateSend},
		{"gap", "passive", oddGap},
		{"PSN far outside", "passive", oddFarPSN},
		{"misaligned atomic", "passive", oddMisaligned},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i, first := range []bth.PSN{0x1000, 0xfffffe, 0xfffffe} {
				v := variant{1500, oddMTU, i == 2, c.role == "passive"}
				t.Run(fmt.Sprintf("PSN %#x, %s", uint32(first), v.ip()), func(t *testing.T) {
					name := "raw: " + c.name
					if first > 0x1000 {
						name += ", PSN wraps"
					}
					t.Attr("scenario", name)
					t.Attr("role", v.role())
					t.Attr("ip", v.ip())
					t.Attr("mtu", fmt.Sprint(oddMTU))
					o := newOddRig(t, first, v.v6)
					c.talk(o)
					if !t.Failed() && o.qp.State() != roce.StateRTS &&
						c.name != "misaligned atomic" {
						t.Errorf("the QP is in %v", o.qp.State())
					}
				})
			}
		})
	}
}

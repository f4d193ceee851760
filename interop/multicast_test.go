//go:build interop

package interop_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/roce"
)

const (
	groupMsgs = 20
	groupSize = 1000
)

// group returns a multicast group of that IP version and the MAC address of its frames (RFC 1112,
// RFC 2464).
func group(v variant) (addr netip.Addr, mac string) {
	if v.v6 {
		return netip.MustParseAddr("ff1e::7701"), "33:33:00:00:77:01"
	}
	return netip.MustParseAddr("239.77.0.1"), "01:00:5e:4d:00:01"
}

// mckey is librdmacm's multicast example: it sends a number of messages to a group, or receives
// them.
func mckey(v variant, flags string) string {
	addr, _ := group(v)
	return fmt.Sprintf("mckey -m %v -b %s -C %d -S %d %s", addr, guestAddr(v), groupMsgs, groupSize,
		flags)
}

// TestMulticast: gorxe (active) sends to a group that a program in the guest has joined, and vice
// versa. Linux 6.1's rdma_cm joins only IPv4 groups (mckey gets ENOTSUPP otherwise), so IPv6 is
// tested with plain verbs.
func TestMulticast(t *testing.T) {
	var v4, v6 []variant
	for _, v := range cmVariants() {
		if v.v6 {
			v6 = append(v6, v)
		} else {
			v4 = append(v4, v)
		}
	}
	play(t, "UD SEND to a multicast group", v6, func(t *testing.T, r *rig, v variant) {
		active, passive := r.ends(t, v, setting{kind: roce.UD})
		to, _ := group(v)
		if !v.gorxePassive {
			// rxe's attach receives the frames, but the guest's IP stack passes on only groups that
			// are joined there too.
			r.guest(t, fmt.Sprintf("ip addr add %v/128 dev eth0 autojoin", to))
			defer r.guest(t, fmt.Sprintf("ip addr del %v/128 dev eth0", to))
		}
		passive.join(to)
		talkSendTo(t, v, active, passive, &address{qpn: uint32(roce.QPNMulticast), gid: to})
	})
	play(t, "mckey", v4, func(t *testing.T, r *rig, v variant) {
		e := newCMEnd(t, r, v, roce.UD)
		e.must(e.qp.Activate(roce.QKeyUDP))
		if v.gorxePassive {
			groupReceiver(t, r, v, e)
		} else {
			groupSender(t, r, v, e)
		}
	})
}

func groupSender(t *testing.T, r *rig, v variant, e *cmEnd) {
	k := r.guestProgram(t, mckey(v, ""))
	addr, mac := group(v)
	for end := time.Now().Add(patience); !strings.Contains(r.guest(t, "ip maddr show dev eth0"),
		mac); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("mckey does not join %v", addr)
		}
	}
	// The host is a member now. Its QP becomes one a moment later and then sleeps for 3 s.
	time.Sleep(time.Second << slow)
	ah, err := r.dev.CreateAH(within(t),
		roce.AHAttr{Remote: bth.GIDFromAddr(addr), GIDIndex: &e.gid.Index})
	e.must(err)
	defer ah.Close()
	for i := range groupMsgs {
		e.must(e.qp.PostSend(roce.SendWR{
			ID: uint64(i), Op: roce.OpSendImm, Flags: roce.Signaled,
			SGEs: []roce.SGE{e.mr.SGE(0, groupSize)}, Imm: uint32(e.qp.QPN()),
			AH: ah, RemoteQPN: roce.QPNMulticast, RemoteQKey: roce.QKeyUDP,
		}))
	}
	expect(t, "gorxe", e, sendQueue, 0, groupMsgs)
	if out, err := k.wait(patience); err != nil ||
		!strings.Contains(out, "data transfers complete") {
		t.Errorf("mckey: %v\n%s", err, out)
	}
}

func groupReceiver(t *testing.T, r *rig, v variant, e *cmEnd) {
	addr, _ := group(v)
	e.recv(0, groupMsgs, 0, groupSize+roce.GRHLen, 2048)
	e.must(e.qp.AttachMulticast(addr))
	k := r.guestProgram(t, mckey(v, "-s"))
	for i, w := range expect(t, "gorxe", e, recvQueue, 0, groupMsgs) {
		if w.size != groupSize+roce.GRHLen || w.imm != w.src {
			t.Errorf("message %d: %d bytes, immediate %#x, from QP %#x", i, w.size, w.imm, w.src)
		}
	}
	// A receiver can answer the sender by the header in front of the message.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ah, err := r.dev.CreateAHFromWC(ctx, &roce.WC{Flags: roce.WCGRH}, e.mr.Bytes()[:roce.GRHLen])
	e.must(err)
	defer ah.Close()
	if got := ah.Remote().Addr(); got != r.Guests[0].Addr(v.v6) {
		t.Errorf("the message names %v as its sender, want %v", got, r.Guests[0].Addr(v.v6))
	}
	if out, err := k.wait(patience); err != nil {
		t.Errorf("mckey: %v\n%s", err, out)
	}
	e.must(e.qp.DetachMulticast(addr))
}

//go:build interop

package interop_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/roce"
)

// kernelTOS is what ucmatose asks for: DSCP 46, which belongs to class 5, and ECT(1).
const kernelTOS = 46<<2 | 1

// classClient is cmatoseClient in class 7. The kernel answers with the DSCP of the class.
func classClient(t *testing.T, r *rig, v variant) {
	cmatoseActive(t, r, v, roce.PathOptions{Class: 7})
	r.marked(t, v, 56<<2|2, 56<<2)
}

// classServer is cmatoseServer for a client with a TOS. gorxe adopts the class and the DSCP, but
// not the ECN bits.
func classServer(t *testing.T, r *rig, v variant) {
	for _, e := range cmatosePassive(t, r, v) {
		if a, err := e.qp.Query(); err != nil || a.Class != 5 {
			t.Errorf("gorxe: class %d, %v; want 5", a.Class, err)
		}
	}
	r.marked(t, v, 46<<2|2, kernelTOS)
}

// marked checks the IPv4 TOS or IPv6 traffic class of all packets of queue pairs that crossed the
// link.
func (r *rig) marked(t *testing.T, v variant, gorxe, kernel uint8) {
	t.Helper()
	var b bytes.Buffer
	_, err := r.SavePCAP(&b)
	check(t, err)
	frames, err := pcapgo.NewReader(&b)
	check(t, err)
	var seen [2]int // of gorxe and of the kernel
	dec, p := new(frame.Decoder), new(bth.Packet)
	for {
		f, _, err := frames.ReadPacketData()
		if err == io.EOF {
			break
		}
		check(t, err)
		if dec.Decode(f, p) != frame.ReasonOK || p.BTH.DestQP() == bth.QPNGSI {
			continue
		}
		who, want := 1, kernel
		if p.Src == roce.GIDFromAddr(r.HostAddr(v.v6)) {
			who, want = 0, gorxe
		}
		if seen[who]++; p.TrafficClass != want {
			t.Fatalf("a packet of %s has traffic class %#x, want %#x",
				[]string{"gorxe", "the kernel"}[who], p.TrafficClass, want)
		}
	}
	if seen[0] == 0 || seen[1] == 0 {
		t.Errorf("recorded %d packets of gorxe and %d of the kernel", seen[0], seen[1])
	}
}

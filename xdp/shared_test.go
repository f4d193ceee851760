//go:build linux

package xdp

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/xdp/veth"
)

// A shared Port receives the packets of slot 0. The others, and packets without a complete BTH,
// reach a socket of the kernel.
func TestShared(t *testing.T) {
	to := func(qpn bth.QPN) []byte {
		b := make([]byte, 64)
		bth.PutBTH(b, &bth.BTHFields{Opcode: bth.RCSendOnly, DestQP: qpn})
		return b
	}
	for _, mode := range modesToTest {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t, veth.Options{})
			b := openEnd(t, &pair.B, Options{Mode: mode, Shared: true})
			for _, own := range []string{"10.77.0.2:4791", "[fd77::2]:4791"} {
				var c net.PacketConn
				inNS(t, &pair.B, func() (err error) {
					c, err = net.ListenPacket("udp", own)
					return err
				})
				defer c.Close()
				for _, p := range []struct {
					payload []byte
					port    bool
				}{
					{to(bth.QPNGSI), true}, {to(0x00ffff), true},
					{to(0x010000), false}, {to(0x7f0001), false}, {to(0xfe0002), false},
					{to(bth.QPNMulticast), false}, {[]byte("short"), false},
				} {
					what := fmt.Sprintf("%s, packet %x", own, p.payload[:5])
					sendUDP(t, &pair.A, own, p.payload)
					if p.port {
						got := receive(t, b, 1, 2*time.Second)
						if len(got) != 1 || !bytes.HasSuffix(got[0], p.payload) {
							t.Errorf("%s: the port received %x", what, got)
						}
						continue
					}
					c.SetReadDeadline(time.Now().Add(2 * time.Second))
					var buf [100]byte
					if n, _, err := c.ReadFrom(buf[:]); err != nil ||
						!bytes.Equal(buf[:n], p.payload) {
						t.Errorf("%s: the kernel's socket received %x, %v", what, buf[:n], err)
					}
				}
				if got := receive(t, b, 1, 0); len(got) != 0 {
					t.Errorf("the port received %x of another slot", got[0])
				}
			}
		})
	}
}

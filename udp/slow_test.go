package udp_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/testbed"
)

// Send waits for a slow link instead of dropping packets that exceed the socket's send buffer.
func TestSlowLink(t *testing.T) {
	p := open(t, testbed.Config{UDP: true, Veth: true, MTU: 4200, Rate: 200e6})
	a := addrs(t, p, netip.Addr.Is4)
	e := &frame.Encoder{SourcePort: bth.Port}
	path := frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}
	var bufs, got [64]driver.Buf
	n := p.Port[0].Alloc(bufs[:])
	for i := range bufs[:n] {
		bufs[i].B = packet(e, bufs[i].B, &path, bth.PSN(i), 4096)
	}
	if sent, err := p.Port[0].Send(bufs[:n]); sent != n || err != nil {
		t.Fatalf("Send() = %d, %v; want %d", sent, err, n)
	}
	have := 0
	for deadline := time.Now().Add(10 * time.Second); have < n && time.Now().Before(deadline); {
		k := p.Port[1].Receive(got[:])
		p.Port[1].Release(got[:k])
		have += k
		if k == 0 {
			_ = p.Port[1].Wait(100 * time.Millisecond)
		}
	}
	if have != n {
		t.Errorf("%d of %d packets arrive", have, n)
	}
}

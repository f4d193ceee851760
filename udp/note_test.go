package udp_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/udp"
	"golang.org/x/sys/unix"
)

// Info.Note has each reason for which packets are not sent, once: also that the source address is
// none of the port.
func TestNotes(t *testing.T) {
	a := udp.RandomLoopback()
	p, err := udp.Open(a.String(), udp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	own := bth.GIDFromAddr(a)
	broadcast := bth.GIDFromAddr(netip.MustParseAddr("127.255.255.255"))
	removed := bth.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))
	e := &frame.Encoder{SourcePort: bth.Port}
	for range 2 {
		for _, path := range []frame.Address{
			{Src: removed, Dst: own, HopLimit: 64}, {Src: own, Dst: broadcast, HopLimit: 64},
		} {
			var bufs [1]driver.Buf
			if p.Alloc(bufs[:]) != 1 {
				t.Fatal("no buffer")
			}
			bufs[0].B = packet(e, bufs[0].B, &path, 0, 8)
			if n, err := p.Send(bufs[:]); n != 0 || err != nil {
				t.Fatalf("Send() = %d, %v from %v to %v, want 0", n, err, path.Src, path.Dst)
			}
		}
	}
	note := p.Info().Note
	for _, want := range []string{unix.EADDRNOTAVAIL.Error(), "the address was removed",
		unix.EACCES.Error()} {
		if n := strings.Count(note, want); n != 1 {
			t.Errorf("Info().Note = %q: %q occurs %d times, want once", note, want, n)
		}
	}
}

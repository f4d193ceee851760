package udpmsg

import "testing"

// The memory that the latest packets occupy is converted to their length.
func TestPast(t *testing.T) {
	const (
		small = 1024 + skbSize // memory of a packet of 300 bytes
		large = 8192 + skbSize // of 4112 bytes
		run   = 10 * (1044 + runPacket)
	)
	var h past
	if n := h.bytes(0); n != 0 {
		t.Errorf("bytes(0) = %d before the first packet, want 0", n)
	}
	h.add(1, LenV4, 300)
	h.add(10, LenV4, 10*1044)
	h.add(1, LenV6, 4112)
	for _, c := range []struct{ memory, want int }{
		{0, 0},
		{large, 4112 + LenV6},
		{large / 2, (4112 + LenV6) / 2},
		{large + run, 4112 + LenV6 + 10*(1044+LenV4)},
		{large + run/2, 4112 + LenV6 + 5*(1044+LenV4)},
		{large + run + small, 4112 + LenV6 + 10*(1044+LenV4) + 300 + LenV4},
	} {
		if n := h.bytes(c.memory); n != c.want {
			t.Errorf("bytes(%d) = %d, want %d", c.memory, n, c.want)
		}
	}
	for range 2 * history {
		h.add(1, LenV4, 300)
	}
	if n, want := h.bytes(history*small), history*(300+LenV4); n != want {
		t.Errorf("bytes() = %d for %d packets, want %d", n, history, want)
	}
}

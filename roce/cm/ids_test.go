package cm

import "testing"

// A CM with a range draws only communication IDs of it.
func TestIDRange(t *testing.T) {
	r := IDRange{0x05000000, 0x05ffffff}
	for _, random := range []uint64{0, 1, 1 << 24, 0xffffffff, 1<<64 - 1, 0x123456789abcdef} {
		if id := r.draw(random); id < r.First || id > r.Last {
			t.Errorf("draw(%#x) = %#x", random, uint32(id))
		}
		if id := (IDRange{}).draw(random); id != CommID(random) {
			t.Errorf("draw(%#x) = %#x without a range", random, uint32(id))
		}
	}
	random := uint64(0)
	m, err := New(Config{GUID: 1, IDs: r, Rand: func() uint64 { random += 1<<32 + 1<<24 - 1; return random }})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		c := m.newConn(0, Addr{})
		if c == nil || c.id < r.First || c.id > r.Last {
			t.Fatalf("newConn() = %+v", c)
		}
	}
	if _, err := New(Config{GUID: 1, IDs: IDRange{2, 1}, Rand: func() uint64 { return 1 }}); err == nil {
		t.Error("New accepts an empty range of IDs")
	}
}

package decode

import (
	"bytes"
	"hash/crc32"
	"testing"

	"github.com/gorxe/gorxe/frame"
)

// FuzzICRC compares the ICRC, which uses wide registers where the processor has them, with a plain
// implementation of the rule (IBA 7.8.1, annex A17.3.3), at every length and alignment.
func FuzzICRC(f *testing.F) {
	const margin = 128
	for i, s := range seeds(f) {
		if len(s) > 14 {
			f.Add(s[14:], uint8(i))
		}
	}
	f.Fuzz(func(t *testing.T, ip []byte, at uint8) {
		if len(ip) > 9000 {
			return
		}
		mem := make([]byte, margin+len(ip)+margin)
		for i := range mem {
			mem[i] = 0xa5
		}
		p := mem[at%margin:][:len(ip):len(ip)]
		copy(p, ip)
		crc, ok := frame.ICRC(p)
		if want, long := plainICRC(ip); ok != long || crc != want {
			t.Fatalf("%#08x, %v; want %#08x, %v", crc, ok, want, long)
		}
		if !bytes.Equal(p, ip) {
			t.Fatal("the packet was changed")
		}
	})
}

// plainICRC applies hash/crc32 to eight bytes 0xff and a masked copy of the packet.
func plainICRC(ip []byte) (crc uint32, ok bool) {
	ipLen, variant := 20, []int{1, 8, 10, 11}
	if len(ip) > 0 && ip[0]>>4 == 6 {
		ipLen, variant = 40, []int{1, 2, 3, 7}
	}
	if len(ip) < ipLen+8+12 {
		return 0, false
	}
	b := append(bytes.Repeat([]byte{0xff}, 8), ip...)
	masked := b[8:]
	if ipLen == 40 {
		masked[0] |= 0x0f
	}
	for _, i := range append(variant, ipLen+6, ipLen+7, ipLen+8+4) {
		masked[i] = 0xff
	}
	return crc32.ChecksumIEEE(b), true
}

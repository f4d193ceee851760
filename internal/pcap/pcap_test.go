package pcap

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// record is a frame of a capture.
type record struct {
	frame []byte
	info  Info
}

// records have several lengths, and times with nanoseconds. The last one was cut.
func records() (out []record) {
	for i := range 9 {
		f := bytes.Repeat([]byte{byte(i)}, 60+i*700)
		out = append(out, record{f, Info{time.Unix(1700000000+int64(i), int64(i)*111111111), len(f)}})
	}
	out[8].info.Length = 9000
	return out
}

// readAll reads a capture to its end.
func readAll(t *testing.T, r io.Reader) (out []record) {
	t.Helper()
	p, err := NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	for {
		f, info, err := p.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, record{bytes.Clone(f), info})
	}
}

// same fails the test unless two captures are equal, with times in the given unit.
func same(t *testing.T, got, want []record, unit time.Duration) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d frames, want %d", len(got), len(want))
	}
	for i := range want {
		if g, w := got[i], want[i]; !bytes.Equal(g.frame, w.frame) || g.info.Length != w.info.Length ||
			!g.info.Time.Equal(w.info.Time.Truncate(unit)) {
			t.Errorf("frame %d: %d bytes, %v; want %d, %v", i, len(g.frame), g.info, len(w.frame),
				w.info)
		}
	}
}

// write returns a file of this package.
func write(t testing.TB, ng bool) []byte {
	t.Helper()
	var b bytes.Buffer
	if !ng {
		w, err := NewWriter(&b)
		for _, r := range records() {
			err = errors.Join(err, w.Write(r.frame, r.info))
		}
		if err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	w := NewNGWriter(&b)
	var err error
	for i, r := range records() {
		if i%4 == 0 {
			_, e := w.AddInterface([]string{"", "eth0", "a long name"}[i/4])
			err = errors.Join(err, e)
		}
		err = errors.Join(err, w.Write(i/4, r.frame, r.info))
	}
	if err = errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What this package writes, it and gopacket read.
func TestWriters(t *testing.T) {
	for _, ng := range []bool{false, true} {
		file := write(t, ng)
		same(t, readAll(t, bytes.NewReader(file)), records(), time.Nanosecond)
		var next func() ([]byte, gopacket.CaptureInfo, error)
		if ng {
			r, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.DefaultNgReaderOptions)
			if err != nil {
				t.Fatal(err)
			}
			next = r.ReadPacketData
		} else {
			r, err := pcapgo.NewReader(bytes.NewReader(file))
			if err != nil {
				t.Fatal(err)
			}
			next = r.ReadPacketData
		}
		var got []record
		for range records() {
			f, ci, err := next()
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, record{f, Info{ci.Timestamp, ci.Length}})
		}
		same(t, got, records(), time.Nanosecond)
	}
}

// Files of gopacket are read, also compressed ones.
func TestReadersOfOthers(t *testing.T) {
	var micros, nanos, ng, zipped bytes.Buffer
	m, n := pcapgo.NewWriter(&micros), pcapgo.NewWriterNanos(&nanos)
	err := errors.Join(m.WriteFileHeader(1<<16, layers.LinkTypeEthernet),
		n.WriteFileHeader(1<<16, layers.LinkTypeEthernet))
	g, e := pcapgo.NewNgWriter(&ng, layers.LinkTypeEthernet)
	if err = errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	for _, r := range records() {
		ci := gopacket.CaptureInfo{Timestamp: r.info.Time, CaptureLength: len(r.frame),
			Length: r.info.Length}
		err = errors.Join(err, m.WritePacket(ci, r.frame), n.WritePacket(ci, r.frame),
			g.WritePacket(ci, r.frame))
	}
	z := gzip.NewWriter(&zipped)
	_, e = z.Write(nanos.Bytes())
	if err = errors.Join(err, g.Flush(), e, z.Close()); err != nil {
		t.Fatal(err)
	}
	same(t, readAll(t, &micros), records(), time.Microsecond)
	same(t, readAll(t, &nanos), records(), time.Nanosecond)
	same(t, readAll(t, &ng), records(), time.Nanosecond)
	same(t, readAll(t, &zipped), records(), time.Nanosecond)
}

// ngFile builds pcapng files block by block, in big-endian byte order.
type ngFile []byte

func (f *ngFile) block(kind uint32, words ...uint32) {
	n := uint32(12 + 4*len(words))
	b := binary.BigEndian.AppendUint32(*f, kind)
	b = binary.BigEndian.AppendUint32(b, n)
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	*f = binary.BigEndian.AppendUint32(b, n)
}

func (f *ngFile) section() { f.block(blockHeader, byteOrderMagic, 1<<16, ^uint32(0), ^uint32(0)) }

// Sections in other byte orders, other resolutions of times, offsets, all kinds of packets, and
// unknown blocks.
func TestNGBlocks(t *testing.T) {
	var f ngFile
	f.section()
	f.block(blockInterface, 1<<16, 4,
		optResolution<<16|1, 0x8a<<24, // 2^-10 s
		optOffset<<16|8, 0, 1000, 0)
	f.block(0x0bad, 1, 2, 3)
	f.block(blockPacket, 0, 0, 5<<10|512, 3, 60, 0x01020300)
	f.block(blockSimple, 6, 0x01020304, 0x05060000) // cut to 4 bytes
	f.block(blockOldPacket, 0, 0, 1024, 4, 4, 0x0a0b0c0d)
	f = append(f, write(t, true)...) // another section
	want := append([]record{
		{[]byte{1, 2, 3}, Info{time.Unix(1005, 5e8), 60}},
		{[]byte{1, 2, 3, 4}, Info{time.Time{}, 6}},
		{[]byte{10, 11, 12, 13}, Info{time.Unix(1001, 0), 4}},
	}, records()...)
	same(t, readAll(t, bytes.NewReader(f)), want, time.Nanosecond)
}

// Errors say what is wrong.
func TestErrors(t *testing.T) {
	plain, ng := write(t, false), write(t, true)
	edit := func(file []byte, at int, b byte) []byte {
		file = bytes.Clone(file)
		file[at] = b
		return file
	}
	var foreign, unknown ngFile
	foreign.section()
	foreign.block(blockInterface, 113<<16, 0)
	foreign.block(blockSimple, 4, 0)
	unknown.section()
	unknown.block(blockPacket, 7, 0, 0, 4, 4, 0)
	for name, c := range map[string]struct {
		file []byte
		want error
	}{
		"empty":                 {nil, ErrFormat},
		"text":                  {[]byte("hello, world, hello, world"), ErrFormat},
		"gzip of nothing":       {[]byte{0x1f, 0x8b, 0, 0}, ErrFormat},
		"short pcap header":     {plain[:20], ErrFormat},
		"cut record header":     {plain[:fileHeaderLen+5], io.ErrUnexpectedEOF},
		"cut frame":             {plain[:fileHeaderLen+recordHeaderLen+5], io.ErrUnexpectedEOF},
		"no bytes of a frame":   {plain[:fileHeaderLen+recordHeaderLen], io.ErrUnexpectedEOF},
		"link type of pcap":     {edit(plain, 20, 113), ErrLinkType},
		"long frame":            {edit(plain, fileHeaderLen+11, 0x7f), ErrCorrupt},
		"no byte order":         {edit(ng, 8, 0), ErrCorrupt},
		"cut section":           {ng[:20], io.ErrUnexpectedEOF},
		"cut block":             {ng[:len(ng)-4], io.ErrUnexpectedEOF},
		"cut start of a block":  {ng[:28+3], io.ErrUnexpectedEOF},
		"lengths of a block":    {edit(ng, 24, 1), ErrCorrupt},
		"link type of pcapng":   {foreign, ErrLinkType},
		"unknown interface":     {unknown, ErrCorrupt},
		"captured beyond block": {edit(ng, 28+32+20+3, 1), ErrCorrupt},
	} {
		r, err := NewReader(bytes.NewReader(c.file))
		for err == nil {
			_, _, err = r.Next()
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// Reader does not panic, and what it returns is within bounds.
func FuzzReader(f *testing.F) {
	var blocks ngFile
	blocks.section()
	blocks.block(blockInterface, 1<<16, 4, optResolution<<16|1, 0x8a<<24, optOffset<<16|8, 0, 1000, 0)
	blocks.block(blockOldPacket, 0, 0, 1024, 4, 4, 0x0a0b0c0d)
	f.Add([]byte(blocks))
	f.Add(write(f, false)[:200])
	f.Add(write(f, true)[:300])
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := NewReader(bytes.NewReader(file))
		for err == nil {
			var frame []byte
			if frame, _, err = r.Next(); err == nil && len(frame) > len(file) && file[0] != 0x1f {
				t.Fatalf("a frame of %d bytes in a file of %d", len(frame), len(file))
			}
		}
	})
}

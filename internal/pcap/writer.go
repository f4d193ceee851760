package pcap

import (
	"bufio"
	"encoding/binary"
	"io"
)

// le is the byte order of files that this package writes.
var le = binary.LittleEndian

// Writer writes a pcap file with nanoseconds. It is not safe for concurrent use.
type Writer struct {
	w    io.Writer
	head [recordHeaderLen]byte
}

// NewWriter writes the header of a file.
func NewWriter(w io.Writer) (*Writer, error) {
	b := le.AppendUint32(nil, magicNanos)
	b = le.AppendUint16(b, 2) // version 2.4
	b = le.AppendUint16(b, 4)
	b = le.AppendUint64(b, 0) // reserved
	b = le.AppendUint32(b, MaxFrame)
	b = le.AppendUint32(b, uint32(linkEthernet))
	_, err := w.Write(b)
	return &Writer{w: w}, err
}

// Write appends a frame.
func (p *Writer) Write(frame []byte, info Info) error {
	b := p.head[:0]
	b = le.AppendUint32(b, uint32(info.Time.Unix()))
	b = le.AppendUint32(b, uint32(info.Time.Nanosecond()))
	b = le.AppendUint32(b, uint32(len(frame)))
	b = le.AppendUint32(b, uint32(info.Length))
	if _, err := p.w.Write(b); err != nil {
		return err
	}
	_, err := p.w.Write(frame)
	return err
}

// NGWriter writes a pcapng file with nanoseconds. It is not safe for concurrent use.
type NGWriter struct {
	w      *bufio.Writer
	ifaces int
	buf    []byte
}

// NewNGWriter begins a file. The file is complete after Flush.
func NewNGWriter(w io.Writer) *NGWriter {
	p := &NGWriter{w: bufio.NewWriter(w)}
	b := le.AppendUint32(p.begin(blockHeader), byteOrderMagic)
	b = le.AppendUint16(b, 1) // version 1.0
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, ^uint64(0)) // the length of the section is unknown
	_ = p.end(b)                       // Flush returns the error
	return p
}

// begin returns the start of a block. end writes its length.
func (p *NGWriter) begin(kind uint32) []byte { return le.AppendUint64(p.buf[:0], uint64(kind)) }

// end completes a block and writes it.
func (p *NGWriter) end(b []byte) error {
	n := uint32(len(b) + 4)
	le.PutUint32(b[4:], n)
	p.buf = le.AppendUint32(b, n)
	_, err := p.w.Write(p.buf)
	return err
}

// pad appends zeros up to a multiple of 4 bytes.
func pad(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }

// AddInterface describes another interface and returns its number for Write.
func (p *NGWriter) AddInterface(name string) (int, error) {
	const maxName = 255
	name = name[:min(len(name), maxName)]
	b := le.AppendUint16(p.begin(blockInterface), uint16(linkEthernet))
	b = le.AppendUint16(b, 0)
	b = le.AppendUint32(b, MaxFrame)
	b = append(le.AppendUint16(le.AppendUint16(b, optResolution), 1), 9, 0, 0, 0) // 10^-9 s
	if name != "" {
		b = pad(append(le.AppendUint16(le.AppendUint16(b, optName), uint16(len(name))), name...))
	}
	b = le.AppendUint32(b, 0) // end of options
	p.ifaces++
	return p.ifaces - 1, p.end(b)
}

// Write appends a frame of an interface.
func (p *NGWriter) Write(iface int, frame []byte, info Info) error {
	stamp := uint64(info.Time.UnixNano())
	b := le.AppendUint32(p.begin(blockPacket), uint32(iface))
	b = le.AppendUint32(b, uint32(stamp>>32))
	b = le.AppendUint32(b, uint32(stamp))
	b = le.AppendUint32(b, uint32(len(frame)))
	b = le.AppendUint32(b, uint32(info.Length))
	return p.end(pad(append(b, frame...)))
}

// Flush writes what is buffered.
func (p *NGWriter) Flush() error { return p.w.Flush() }

package pcap

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Reader reads a capture. It is not safe for concurrent use.
type Reader struct {
	r     *bufio.Reader
	order binary.ByteOrder
	buf   []byte // of the latest frame or block
	next  func() ([]byte, Info, error)

	unit time.Duration // pcap: of the fraction of a second

	ifaces []iface // pcapng: of the section
}

// NewReader reads the header of a capture in either format, which may be compressed with gzip.
func NewReader(r io.Reader) (*Reader, error) {
	p := &Reader{r: bufio.NewReader(r)}
	head, err := p.r.Peek(4)
	if err == nil && binary.LittleEndian.Uint16(head) == magicGzip {
		z, zipErr := gzip.NewReader(p.r)
		if zipErr != nil {
			return nil, fmt.Errorf("%w: %w", ErrFormat, zipErr)
		}
		p.r = bufio.NewReader(z)
		head, err = p.r.Peek(4)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if binary.LittleEndian.Uint32(head) == blockHeader {
		return p, p.startNG()
	}
	return p, p.start(head)
}

// Next returns the next frame, which is valid until the next call. After the last one it returns
// io.EOF, and io.ErrUnexpectedEOF if the file ends in the middle of a frame.
func (p *Reader) Next() ([]byte, Info, error) { return p.next() }

// start reads the header of a pcap file, which begins with head.
func (p *Reader) start(head []byte) error {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(head) {
		case magicMicros:
			p.order, p.unit = order, time.Microsecond
		case magicNanos:
			p.order, p.unit = order, time.Nanosecond
		}
	}
	if p.order == nil {
		return ErrFormat
	}
	b, err := p.read(fileHeaderLen)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	p.next = p.record
	return linkType(p.order.Uint32(b[20:])).check() // the upper 16 bits describe checksums
}

// record reads a frame of a pcap file: its time, captured length and length, and its bytes.
func (p *Reader) record() ([]byte, Info, error) {
	b, err := p.read(recordHeaderLen)
	if err != nil {
		return nil, Info{}, err
	}
	info := Info{Length: int(p.order.Uint32(b[12:])),
		Time: time.Unix(int64(p.order.Uint32(b)), int64(p.order.Uint32(b[4:]))*int64(p.unit))}
	b, err = p.read(int(p.order.Uint32(b[8:])))
	return b, info, within(err)
}

// read returns the next n bytes. The error is io.EOF only if there is none.
func (p *Reader) read(n int) ([]byte, error) {
	if n > maxRead {
		return nil, fmt.Errorf("%w: %d bytes at once", ErrCorrupt, n)
	}
	if n > len(p.buf) {
		p.buf = make([]byte, max(n, 1<<12))
	}
	_, err := io.ReadFull(p.r, p.buf[:n])
	return p.buf[:n], err
}

// within returns the error of a read in the middle of a frame or block.
func within(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

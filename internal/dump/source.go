package dump

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// Stdio is the file name that means stdin or stdout.
const Stdio = "-"

// Capture is a captured frame. It is valid until the next call of Source.Next.
type Capture struct {
	Frame []byte
	Info  gopacket.CaptureInfo
	Iface string // interface of a live capture
}

// Source provides frames.
type Source interface {
	// Next returns the next frame, or io.EOF after the last.
	Next() (*Capture, error)
	// Live reports whether frames come from an interface.
	Live() bool
	// Lost returns the number of frames that the kernel dropped because they were not read in time.
	Lost() int
	Close() error
}

// Open opens a capture file, stdin (Stdio), an interface, or all interfaces (""). A file takes
// precedence over an interface of the same name. The end of ctx ends a live source.
func Open(ctx context.Context, name string, stdin io.Reader) (Source, error) {
	switch name {
	case "":
		return listen(ctx, nil)
	case Stdio:
		return openFile("stdin", io.NopCloser(stdin))
	}
	file, err := os.Open(name)
	if err == nil {
		if st, err := file.Stat(); err == nil && st.IsDir() {
			file.Close()
			return nil, fmt.Errorf("%s is a directory: give a capture file or an interface", name)
		}
		return openFile(name, file)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	intf, err := findInterface(name)
	if err != nil {
		return nil, err
	}
	return listen(ctx, intf)
}

// fileSource reads pcap and pcapng files.
type fileSource struct {
	name   string
	closer io.Closer
	read   func() ([]byte, gopacket.CaptureInfo, error)
	n      int // frames read
	c      Capture
}

// ngMagic is the start of a pcapng file: the type of its section header block.
var ngMagic = []byte{0x0a, 0x0d, 0x0d, 0x0a}

func openFile(name string, f io.ReadCloser) (Source, error) {
	s := &fileSource{name: name, closer: f}
	link, err := s.readHeader(bufio.NewReader(f))
	if err == nil && link != layers.LinkTypeEthernet {
		err = fmt.Errorf("link type %v is not Ethernet: capture on one interface, not on 'any'",
			link)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// readHeader detects the format and reads the file's header.
func (s *fileSource) readHeader(r *bufio.Reader) (layers.LinkType, error) {
	head, err := r.Peek(len(ngMagic))
	if err != nil {
		return 0, notACapture(err)
	}
	if bytes.Equal(head, ngMagic) {
		ng, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{ErrorOnMismatchingLinkType: true})
		if err != nil {
			return 0, fmt.Errorf("starts like a pcapng file but cannot be read: %w", err)
		}
		s.read = ng.ReadPacketData
		return ng.LinkType(), nil
	}
	old, err := pcapgo.NewReader(r)
	if err != nil {
		return 0, notACapture(err)
	}
	s.read = old.ReadPacketData
	return old.LinkType(), nil
}

func notACapture(err error) error {
	return fmt.Errorf("neither pcap nor pcapng: give a file written by tcpdump, Wireshark or gorxe dump -w (%w)", err)
}

func (s *fileSource) Next() (*Capture, error) {
	var err error
	s.c.Frame, s.c.Info, err = s.read()
	switch {
	case err == nil:
		s.n++
		return &s.c, nil
	case err == io.EOF:
		return nil, io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%s ends in the middle of frame %d: the file is incomplete", s.name,
			s.n+1)
	}
	return nil, fmt.Errorf("%s cannot be read after frame %d: %w", s.name, s.n, err)
}

func (s *fileSource) Live() bool   { return false }
func (s *fileSource) Lost() int    { return 0 }
func (s *fileSource) Close() error { return s.closer.Close() }

package dump

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/gorxe/gorxe/frame"
)

// stdio is the file name that means stdin or stdout.
const stdio = "-"

// capture is one captured frame, valid until the next one is asked for.
type capture struct {
	frame []byte
	info  gopacket.CaptureInfo
	iface string // where it was seen, if listening
}

// source is what frames come from.
type source interface {
	// next returns the next frame, io.EOF behind the last.
	next() (*capture, error)
	// live tells whether frames come as they happen.
	live() bool
	// lost is how many frames could not be taken in time.
	lost() int
	Close() error
}

// fileSource reads pcap and pcapng files.
type fileSource struct {
	name   string
	closer io.Closer
	read   func() ([]byte, gopacket.CaptureInfo, error)
	n      int // frames read
	c      capture
}

// ngMagic begins a pcapng file: the type of its section header block.
var ngMagic = []byte{0x0a, 0x0d, 0x0d, 0x0a}

func openFile(name string, f io.ReadCloser) (source, error) {
	s := &fileSource{name: name, closer: f}
	link, err := s.start(bufio.NewReader(f))
	if err == nil && link != layers.LinkTypeEthernet {
		err = fmt.Errorf("its link type is %v, not Ethernet: capture on one interface, not on 'any'", link)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// start finds out which of the two formats it is.
func (s *fileSource) start(r *bufio.Reader) (layers.LinkType, error) {
	head, err := r.Peek(len(ngMagic))
	if err != nil {
		return 0, fmt.Errorf("it is neither pcap nor pcapng: give a file that tcpdump, Wireshark or gorxe dump -w wrote (%w)", err)
	}
	if bytes.Equal(head, ngMagic) {
		ng, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{ErrorOnMismatchingLinkType: true})
		if err != nil {
			return 0, fmt.Errorf("it begins like pcapng but cannot be read: %w", err)
		}
		s.read = ng.ReadPacketData
		return ng.LinkType(), nil
	}
	old, err := pcapgo.NewReader(r)
	if err != nil {
		return 0, fmt.Errorf("it is neither pcap nor pcapng: give a file that tcpdump, Wireshark or gorxe dump -w wrote (%w)", err)
	}
	s.read = old.ReadPacketData
	return old.LinkType(), nil
}

func (s *fileSource) next() (*capture, error) {
	var err error
	s.c.frame, s.c.info, err = s.read()
	switch {
	case err == nil:
		s.n++
		return &s.c, nil
	case err == io.EOF:
		return nil, io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%s ends in the middle of frame %d: the capture was cut off", s.name, s.n+1)
	}
	return nil, fmt.Errorf("%s cannot be read beyond frame %d: %w", s.name, s.n, err)
}

func (s *fileSource) live() bool   { return false }
func (s *fileSource) lost() int    { return 0 }
func (s *fileSource) Close() error { return s.closer.Close() }

// summary counts what went by.
type summary struct {
	start   time.Time
	frames  int
	roce    int // all that count as RoCE, sound or not
	cut     int // shortened by the capture itself
	reasons [frame.NumReasons]int
}

func (s *summary) count(c *capture, r frame.Reason) {
	s.frames++
	s.reasons[r]++
	if shown(r) {
		s.roce++
	}
	if r == frame.ReasonShort && c.info.CaptureLength < c.info.Length {
		s.cut++
	}
}

// write tells the numbers, one thing a line, and what to do about those that are bad.
func (s *summary) write(w io.Writer, lost int) {
	fmt.Fprintf(w, "%d frames, %d RoCEv2, %d with a bad ICRC\n", s.frames, s.roce, s.reasons[frame.ReasonICRC])
	for r := range frame.NumReasons {
		if n := s.reasons[r]; n > 0 && r != frame.ReasonOK && r != frame.ReasonNotRoCE && r != frame.ReasonICRC {
			fmt.Fprintf(w, "%d refused: %v\n", n, r)
		}
	}
	if s.cut > 0 {
		fmt.Fprintf(w, "%d were cut by the capture, and their ICRC with them: capture whole frames (tcpdump -s 0)\n", s.cut)
	}
	if lost > 0 {
		fmt.Fprintf(w, "%d were lost because they came faster than they could be shown: use -q -w FILE\n", lost)
	}
}

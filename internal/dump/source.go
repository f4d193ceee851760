package dump

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gorxe/gorxe/internal/pcap"
)

// Stdio is the file name that means stdin or stdout.
const Stdio = "-"

// Capture is a captured frame. It is valid until the next call of Source.Next.
type Capture struct {
	Frame []byte
	Info  pcap.Info
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
	r      *pcap.Reader
	n      int // frames read
	c      Capture
}

func openFile(name string, f io.ReadCloser) (Source, error) {
	r, err := pcap.NewReader(f)
	if err == nil {
		return &fileSource{name: name, closer: f, r: r}, nil
	}
	f.Close()
	switch {
	case errors.Is(err, pcap.ErrFormat):
		return nil, fmt.Errorf("%s: give a file written by tcpdump, Wireshark or gorxe dump -w: %w",
			name, err)
	case errors.Is(err, pcap.ErrLinkType):
		return nil, notEthernet(name, err)
	}
	return nil, fmt.Errorf("%s: starts like a pcapng file but cannot be read: %w", name, err)
}

func notEthernet(name string, err error) error {
	return fmt.Errorf("%s: %w: capture on one interface, not on 'any'", name, err)
}

func (s *fileSource) Next() (*Capture, error) {
	var err error
	s.c.Frame, s.c.Info, err = s.r.Next()
	switch {
	case err == nil:
		s.n++
		return &s.c, nil
	case err == io.EOF:
		return nil, io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%s ends in the middle of frame %d: the file is incomplete", s.name,
			s.n+1)
	case errors.Is(err, pcap.ErrLinkType):
		return nil, notEthernet(s.name, err)
	}
	return nil, fmt.Errorf("%s cannot be read after frame %d: %w", s.name, s.n, err)
}

func (s *fileSource) Live() bool   { return false }
func (s *fileSource) Lost() int    { return 0 }
func (s *fileSource) Close() error { return s.closer.Close() }

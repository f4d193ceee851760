package dump

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/pcap"
)

// Saver writes frames to a pcapng file.
type Saver struct {
	name   string
	w      *pcap.NGWriter
	closer io.Closer
	flush  bool           // after each frame
	ifaces map[string]int // pcapng interface numbers
	failed bool           // Write has returned an error
}

// NewSaver creates a file, or writes to stdout if name is Stdio. input is the name of the source;
// it must not be the same file. With flush each frame is written at once.
func NewSaver(name, input string, stdout io.Writer, flush bool) (*Saver, error) {
	s := &Saver{name: name, flush: flush, ifaces: map[string]int{}}
	if name == Stdio {
		s.name, s.w, s.closer = "stdout", pcap.NewNGWriter(stdout), io.NopCloser(nil)
		return s, nil
	}
	if a, err := os.Stat(name); err == nil {
		if b, err := os.Stat(input); err == nil && os.SameFile(a, b) {
			return nil, cli.Usagef("-w %s would overwrite the input file: choose another name",
				name)
		}
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("cannot write: %w", err)
	}
	s.w, s.closer = pcap.NewNGWriter(f), f
	return s, nil
}

// Write appends a frame, and a description of its interface if that is new.
func (s *Saver) Write(c *Capture) (err error) {
	defer func() { s.failed = s.failed || err != nil }()
	id, ok := s.ifaces[c.Iface]
	if !ok {
		if id, err = s.w.AddInterface(c.Iface); err != nil {
			return s.wrap(err)
		}
		s.ifaces[c.Iface] = id
	}
	err = s.w.Write(id, c.Frame, c.Info)
	if err == nil && s.flush {
		err = s.w.Flush()
	}
	return s.wrap(err)
}

// Close finishes the file. A file without frames describes one interface, because tcpdump refuses
// files without any. The error of a Write is not repeated.
func (s *Saver) Close() error {
	var err error
	if !s.failed {
		if len(s.ifaces) == 0 {
			_, err = s.w.AddInterface("")
		}
		err = errors.Join(err, s.w.Flush())
	}
	return s.wrap(errors.Join(err, s.closer.Close()))
}

func (s *Saver) wrap(err error) error {
	if path := new(fs.PathError); err == nil || errors.As(err, &path) {
		return err // a PathError names the file
	}
	return fmt.Errorf("write %s: %w", s.name, err)
}

package dump

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/gorxe/gorxe/internal/cli"
)

// Saver writes frames to a pcapng file.
type Saver struct {
	name   string
	w      *pcapgo.NgWriter // nil before the first interface is known
	dst    io.Writer
	closer io.Closer
	flush  bool           // after each frame
	ifaces map[string]int // pcapng interface numbers
}

// NewSaver creates a file, or writes to stdout if name is Stdio. input is the name of the source;
// it must not be the same file. With flush each frame is written at once.
func NewSaver(name, input string, stdout io.Writer, flush bool) (*Saver, error) {
	s := &Saver{name: name, flush: flush, ifaces: map[string]int{}}
	if name == Stdio {
		s.name, s.dst, s.closer = "stdout", stdout, io.NopCloser(nil)
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
	s.dst, s.closer = f, f
	return s, nil
}

// Write appends a frame, and a description of its interface if that is new.
func (s *Saver) Write(c *Capture) error {
	id, ok := s.ifaces[c.Iface]
	if !ok {
		var err error
		if id, err = s.addInterface(c.Iface); err != nil {
			return s.wrap(err)
		}
		s.ifaces[c.Iface] = id
	}
	info := c.Info
	info.InterfaceIndex = id
	err := s.w.WritePacket(info, c.Frame)
	if err == nil && s.flush {
		err = s.w.Flush()
	}
	return s.wrap(err)
}

// addInterface writes the description of an interface. The file's header needs the first interface,
// so the first call writes the header too.
func (s *Saver) addInterface(iface string) (int, error) {
	intf := pcapgo.DefaultNgInterface
	intf.LinkType = layers.LinkTypeEthernet
	intf.Name = iface
	if s.w != nil {
		return s.w.AddInterface(intf)
	}
	var err error
	s.w, err = pcapgo.NewNgWriterInterface(s.dst, intf, pcapgo.DefaultNgWriterOptions)
	return 0, err
}

// Close finishes the file. A file without frames is valid too.
func (s *Saver) Close() error {
	var err error
	if s.w == nil {
		_, err = s.addInterface("")
	}
	if err == nil {
		err = s.w.Flush()
	}
	return s.wrap(errors.Join(err, s.closer.Close()))
}

func (s *Saver) wrap(err error) error {
	if path := new(fs.PathError); err == nil || errors.As(err, &path) {
		return err // a PathError names the file
	}
	return fmt.Errorf("write %s: %w", s.name, err)
}

package dump

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/gorxe/gorxe/internal/cli"
)

// saver writes frames to a pcapng file.
type saver struct {
	name   string
	w      *pcapgo.NgWriter
	closer io.Closer
	flush  bool           // after each frame, for who watches
	ifaces map[string]int // pcapng interface numbers
	first  io.Writer      // where the file goes, until the first interface is known
}

// newSaver creates the file name; input must not be that same file.
func newSaver(name, input string, stdout io.Writer, flush bool) (*saver, error) {
	s := &saver{name: name, flush: flush, ifaces: map[string]int{}}
	if name == stdio {
		s.name, s.first, s.closer = "stdout", stdout, io.NopCloser(nil)
		return s, nil
	}
	if a, err := os.Stat(name); err == nil {
		if b, err := os.Stat(input); err == nil && os.SameFile(a, b) {
			return nil, cli.Usagef("-w %s would overwrite the file that is read: choose another name", name)
		}
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("cannot write: %w", err)
	}
	s.first, s.closer = f, f
	return s, nil
}

// write appends a frame, and the interface it came from if that is new.
func (s *saver) write(c *capture) error {
	id, ok := s.ifaces[c.iface]
	if !ok {
		var err error
		if id, err = s.add(c.iface); err != nil {
			return s.failed(err)
		}
		s.ifaces[c.iface] = id
	}
	info := c.info
	info.InterfaceIndex = id
	err := s.w.WritePacket(info, c.frame)
	if err == nil && s.flush {
		err = s.w.Flush()
	}
	return s.failed(err)
}

// add tells the file of an interface. The format wants one before the first frame,
// so the file's head is written with the first.
func (s *saver) add(iface string) (int, error) {
	intf := pcapgo.DefaultNgInterface
	intf.LinkType = layers.LinkTypeEthernet
	intf.Name = iface
	if s.w != nil {
		return s.w.AddInterface(intf)
	}
	var err error
	s.w, err = pcapgo.NewNgWriterInterface(s.first, intf, pcapgo.DefaultNgWriterOptions)
	return 0, err
}

// Close finishes the file; without any frame it still is a valid one.
func (s *saver) Close() error {
	var err error
	if s.w == nil {
		_, err = s.add("")
	}
	if err == nil {
		err = s.w.Flush()
	}
	return s.failed(errors.Join(err, s.closer.Close()))
}

func (s *saver) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("writing %s: %w", s.name, err)
}

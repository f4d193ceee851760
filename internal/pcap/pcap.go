package pcap

import (
	"errors"
	"fmt"
	"time"
)

// MaxFrame is the limit on the length of frames that files declare, bytes. It is that of tcpdump.
const MaxFrame = 1 << 18

// maxRead is the length of the longest frame or block that is read, bytes.
const maxRead = 1 << 24

var (
	// ErrFormat means that a file has neither format.
	ErrFormat = errors.New("neither pcap nor pcapng")
	// ErrCorrupt means that a file violates its format.
	ErrCorrupt = errors.New("the file is corrupt")
	// ErrLinkType means that a file has frames that are not Ethernet frames.
	ErrLinkType = errors.New("not a capture of Ethernet frames")
)

// Info describes a frame.
type Info struct {
	Time time.Time
	// Length is the length of the frame on the network, bytes. The capture may have less of it.
	Length int
}

// linkType says what the frames of an interface begin with.
type linkType uint16

const linkEthernet linkType = 1

// check returns an error unless l is Ethernet.
func (l linkType) check() error {
	switch l {
	case linkEthernet:
		return nil
	case 113, 276:
		return fmt.Errorf("%w: link type Linux cooked (%d)", ErrLinkType, l)
	}
	return fmt.Errorf("%w: link type %d", ErrLinkType, l)
}

// Magic numbers at the start of a file.
const (
	magicMicros = 0xa1b2c3d4 // pcap with microseconds
	magicNanos  = 0xa1b23c4d // pcap with nanoseconds
	magicGzip   = 0x8b1f     // 2 bytes, little endian
	blockHeader = 0x0a0d0d0a // pcapng: the type of the first block
)

// Sizes in bytes.
const (
	fileHeaderLen   = 24
	recordHeaderLen = 16
)

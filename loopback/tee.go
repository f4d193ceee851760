package loopback

import (
	"bufio"
	"io"
	"sync"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/gorxe/gorxe/driver"
)

// snapLen is the longest frame that a capture stores whole.
const snapLen = 1 << 16

// captureBuffer is how many bytes of a capture are gathered for one write.
const captureBuffer = 1 << 16

// Capture is a pcap file that any number of Ports write to, with timestamps
// in nanoseconds. Safe for use by several goroutines.
type Capture struct {
	mu    sync.Mutex
	buf   *bufio.Writer
	pcap  *pcapgo.Writer
	clock func() int64
	err   error
}

// NewCapture begins a pcap file. clock gives the time of a frame in
// nanoseconds since 1970; nil means the computer's clock.
func NewCapture(w io.Writer, clock func() int64) *Capture {
	if clock == nil {
		clock = func() int64 { return time.Now().UnixNano() }
	}
	c := &Capture{buf: bufio.NewWriterSize(w, captureBuffer), clock: clock}
	c.pcap = pcapgo.NewWriterNanos(c.buf)
	c.err = c.pcap.WriteFileHeader(snapLen, layers.LinkTypeEthernet)
	return c
}

// Tee records what p's owner sends, at the moment of Send, and receives. The
// result has the interfaces that p has of driver.Network and Stats.
func (c *Capture) Tee(p driver.Port) driver.Port {
	return dress(&tee{Port: p, capture: c}, p)
}

// Flush writes what is still in memory and returns the first error of the
// capture; after an error it records nothing more, and the Ports go on.
func (c *Capture) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.buf.Flush(); c.err == nil {
		c.err = err
	}
	return c.err
}

func (c *Capture) record(bufs []driver.Buf) {
	if len(bufs) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Unix(0, c.clock())
	for i := range bufs {
		if c.err != nil {
			return
		}
		n := len(bufs[i].B)
		c.err = c.pcap.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: n, Length: n}, bufs[i].B)
	}
}

// Tee records all that goes through p as a pcap file on w. What is in memory
// is written when the owner waits and when it closes the Port; w stays open.
// For a clock of one's own, several Ports in one file, or the errors of the
// capture, see NewCapture.
func Tee(p driver.Port, w io.Writer) driver.Port {
	return NewCapture(w, nil).Tee(p)
}

// tee is the wrapper of Capture.Tee.
type tee struct {
	driver.Port
	capture *Capture
}

func (t *tee) self() any           { return t }
func (t *tee) Unwrap() driver.Port { return t.Port }

// Receive implements driver.Port.
func (t *tee) Receive(bufs []driver.Buf) int {
	n := t.Port.Receive(bufs)
	t.capture.record(bufs[:n])
	return n
}

// Send implements driver.Port. The frames are recorded first: after it they
// are not the caller's to read.
func (t *tee) Send(bufs []driver.Buf) (int, error) {
	t.capture.record(bufs)
	return t.Port.Send(bufs)
}

// Wait implements driver.Port. An idle moment is the time to write.
func (t *tee) Wait(d time.Duration) error {
	_ = t.capture.Flush() // kept for the next Flush
	return t.Port.Wait(d)
}

// Close implements driver.Port.
func (t *tee) Close() error {
	err := t.Port.Close()
	if e := t.capture.Flush(); err == nil {
		err = e
	}
	return err
}

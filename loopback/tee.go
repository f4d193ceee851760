package loopback

import (
	"bufio"
	"io"
	"sync"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/pcap"
)

// captureBuffer is the size of a capture's write buffer, bytes.
const captureBuffer = 1 << 16

// Capture is a pcap file with nanosecond timestamps to which any number of Ports write. It is safe
// for concurrent use.
type Capture struct {
	mu    sync.Mutex
	buf   *bufio.Writer
	pcap  *pcap.Writer
	clock func() int64
	err   error
}

// NewCapture starts a pcap file. clock returns the time of a frame in nanoseconds since 1970; nil
// means the system clock.
func NewCapture(w io.Writer, clock func() int64) *Capture {
	if clock == nil {
		clock = func() int64 { return time.Now().UnixNano() }
	}
	c := &Capture{buf: bufio.NewWriterSize(w, captureBuffer), clock: clock}
	c.pcap, c.err = pcap.NewWriter(c.buf)
	return c
}

// Tee returns a Port that records the frames that p's owner sends, at the time of Send, and
// receives. The result implements driver.Network and driver.StatsReader if p does; driver.Find
// finds the other interfaces of p.
func (c *Capture) Tee(p driver.Port) driver.Port {
	return withInterfaces(&tee{Port: p, capture: c}, p)
}

// Flush writes buffered frames and returns the first error of the capture. After an error the
// capture records nothing more, but the Ports continue to work.
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
		c.err = c.pcap.Write(bufs[i].B, pcap.Info{Time: at, Length: len(bufs[i].B)})
	}
}

// Tee returns a Port that records all frames through p as a pcap file on w. Buffered frames are
// written when the owner calls Wait and Close. w remains open. To use another clock, to record
// several Ports in one file, or to see errors, use NewCapture.
func Tee(p driver.Port, w io.Writer) driver.Port {
	return NewCapture(w, nil).Tee(p)
}

// tee is the wrapper of Capture.Tee.
type tee struct {
	driver.Port
	capture *Capture
}

func (t *tee) bare() any           { return t }
func (t *tee) Unwrap() driver.Port { return t.Port }

// Receive implements driver.Port.
func (t *tee) Receive(bufs []driver.Buf) int {
	n := t.Port.Receive(bufs)
	t.capture.record(bufs[:n])
	return n
}

// Send implements driver.Port. It records the frames first, because the caller must not read them
// afterwards.
func (t *tee) Send(bufs []driver.Buf) (int, error) {
	t.capture.record(bufs)
	return t.Port.Send(bufs)
}

// Wait implements driver.Port. It flushes the capture, because the owner is idle.
func (t *tee) Wait(d time.Duration) error {
	_ = t.capture.Flush() // Flush will return the error again
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

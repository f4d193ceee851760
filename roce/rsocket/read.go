package rsocket

import (
	"io"
	"net"
)

// Read reads into p what has arrived, and waits if there is nothing. At the end of the peer's
// stream it returns io.EOF. See net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for n := 0; ; {
		b, err := c.next(n == 0 && len(p) > 0)
		if err != nil || len(b) == 0 {
			return n, err
		}
		k := copy(p[n:], b)
		c.consume(k)
		if n += k; n == len(p) {
			return n, nil
		}
	}
}

// WriteTo writes the peer's stream to w until io.EOF, directly from the memory that the peer writes
// into. It implements io.WriterTo.
func (c *Conn) WriteTo(w io.Writer) (n int64, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		b, err := c.next(true)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		k, err := w.Write(b)
		c.consume(max(0, min(k, len(b))))
		n += int64(k)
		if err != nil {
			return n, err
		}
		if k != len(b) {
			return n, io.ErrShortWrite
		}
	}
}

// next returns the next bytes of the stream in the receive buffer. If there are none, it waits, or
// returns none. The caller has the lock of readers.
func (c *Conn) next(wait bool) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, c.opError("read", net.ErrClosed)
	}
	if err := c.deadlines[reader].Err(); err != nil && wait {
		return nil, c.opError("read", err)
	}
	if wait {
		if err := c.await(reader, c.deadlines[reader]); err != nil {
			return nil, c.opError("read", err)
		}
	}
	off, n := c.stream.Readable()
	switch {
	case n > 0:
		return c.open.Bytes()[c.ringAt+off:][:n], nil
	case !wait:
		return nil, nil
	case c.stream.PeerShutdown():
		return nil, io.EOF
	}
	return nil, c.opError("read", c.err)
}

// consume gives the memory of n bytes back to the peer.
func (c *Conn) consume(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream.Consume(n)
	c.control()
}

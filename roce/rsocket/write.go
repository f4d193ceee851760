package rsocket

import (
	"errors"
	"io"
	"math"
	"net"
)

// Write sends p. It returns when p has been copied and posted, and waits while the peer has no
// space or the send buffer is full. While at least 128 KiB are in flight and no other call waits,
// the data may wait for the next Write, for about 2 ms at most, to be sent together. See net.Conn.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if len(p) == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return 0, c.opError("write", c.writable())
	}
	for n < len(p) {
		b, err := c.space(len(p) - n)
		if err != nil {
			return n, err
		}
		k := copy(b, p[n:])
		if err := c.commit(k, true); err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}

// ReadFrom sends everything that it reads from r until io.EOF. It reads directly into the memory
// from which the device sends. Meanwhile other writers wait. It implements io.ReaderFrom.
func (c *Conn) ReadFrom(r io.Reader) (n int64, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		b, err := c.space(math.MaxInt)
		if err != nil {
			return n, err
		}
		k, err := r.Read(b)
		if k > 0 {
			if err := c.commit(min(k, len(b)), false); err != nil {
				return n, err
			}
			n += int64(k)
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// space waits until data can be sent, and returns memory for the next bytes, at most limit. The
// caller has the lock of writers.
func (c *Conn) space(limit int) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.awaitWritable(writer); err != nil {
		return nil, c.opError("write", err)
	}
	off, n := c.stream.Space()
	return c.send.Bytes()[off:][:min(n, limit, c.chunk())], nil
}

// awaitWritable waits as a writer or mapper until data can be sent, at most until the deadline of
// writes. The caller holds mu.
func (c *Conn) awaitWritable(k role) error {
	err := c.writable()
	if err == nil {
		err = c.deadlines[writer].Err()
	}
	if err == nil {
		err = c.await(k, c.deadlines[writer])
	}
	if err == nil {
		err = c.writable()
	}
	return err
}

// commit sends the first n bytes of the memory that space has returned. With collect they may wait
// for the next call, if enough is in flight and no call waits, possibly for an answer to them.
func (c *Conn) commit(n int, collect bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writable(); err != nil {
		return c.opError("write", err)
	}
	c.stream.Stage(n)
	if collect && !c.wait.leading && c.inFlight() >= collectFrom && c.stream.Staged() < c.chunk() {
		c.collectLater()
		return nil
	}
	if c.sendStaged(); c.err != nil {
		return c.opError("write", c.err)
	}
	return nil
}

// writable returns why the connection cannot be written anymore. The caller holds mu.
func (c *Conn) writable() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.stream.PeerDisconnected():
		return errPeerClosed
	case c.err != nil:
		return c.err
	case c.stream.Shut():
		return errWriteShut
	}
	return nil
}

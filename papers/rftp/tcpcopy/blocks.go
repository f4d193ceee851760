package tcpcopy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
)

// headerLen is the length of the header of a block: offset and length. Length 0 ends the stream.
const headerLen = 8 + 8

// parallel calls f for each stream and returns the errors of all. After an error it closes all
// streams, so that no call waits forever.
func parallel(conns []*net.TCPConn, f func(c *net.TCPConn) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(conns))
	for i, c := range conns {
		wg.Go(func() {
			if errs[i] = f(c); errs[i] != nil {
				for _, c := range conns {
					_ = c.Close()
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// sendBlocks sends size bytes of file, or from memory if it is nil. Each stream takes the next
// block when it has sent its last one.
func sendBlocks(conns []*net.TCPConn, file *os.File, size int64) error {
	var next atomic.Int64
	return parallel(conns, func(c *net.TCPConn) error {
		buf := make([]byte, headerLen+BlockSize)
		for {
			off := next.Add(BlockSize) - BlockSize
			n := max(0, min(BlockSize, size-off))
			binary.BigEndian.PutUint64(buf, uint64(off))
			binary.BigEndian.PutUint64(buf[8:], uint64(n))
			if n > 0 && file != nil {
				if _, err := file.ReadAt(buf[headerLen:headerLen+n], off); err != nil {
					return err
				}
			}
			if _, err := c.Write(buf[:headerLen+n]); err != nil || n == 0 {
				return err
			}
		}
	})
}

// receiveBlocks receives blocks until all streams have ended, and writes them into file unless that
// is nil. It returns the number of bytes.
func receiveBlocks(conns []*net.TCPConn, file *os.File, size int64) (int64, error) {
	var total atomic.Int64
	err := parallel(conns, func(c *net.TCPConn) error {
		buf := make([]byte, BlockSize)
		var header [headerLen]byte
		for {
			if _, err := io.ReadFull(c, header[:]); err != nil {
				return err
			}
			off := binary.BigEndian.Uint64(header[:])
			n := binary.BigEndian.Uint64(header[8:])
			if n == 0 {
				return nil
			}
			if n > BlockSize || off > uint64(size) || n > uint64(size)-off {
				return fmt.Errorf("%w: block of %d bytes at %d", ErrPeer, n, off)
			}
			if _, err := io.ReadFull(c, buf[:n]); err != nil {
				return err
			}
			if file != nil {
				if _, err := file.WriteAt(buf[:n], int64(off)); err != nil {
					return err
				}
			}
			total.Add(int64(n))
		}
	})
	return total.Load(), err
}

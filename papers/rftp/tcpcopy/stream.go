package tcpcopy

import (
	"io"
	"net"
	"os"
)

// sendStream sends a file with sendfile, which io.Copy uses from a file to a TCP connection.
func sendStream(c *net.TCPConn, file *os.File, size int64) error {
	n, err := io.Copy(c, io.LimitReader(file, size))
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// receiveStream receives a file with splice, which io.Copy uses from a TCP connection to a file.
func receiveStream(c *net.TCPConn, file *os.File, size int64) (int64, error) {
	return io.Copy(file, io.LimitReader(c, size))
}

package rsocket

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// CloseWrite does not wait for a call that sends, which ends with EPIPE. The peer reads what the
// call had sent, and then io.EOF.
func TestCloseWriteEndsWrite(t *testing.T) {
	const many = 64 << 20
	for name, send := range map[string]func(c *Conn, sent *int64) error{
		"Write": func(c *Conn, sent *int64) error {
			n, err := c.Write(make([]byte, many))
			*sent = int64(n)
			return err
		},
		"ReadFrom": func(c *Conn, sent *int64) (err error) {
			*sent, err = c.ReadFrom(&io.LimitedReader{R: zeros{}, N: many})
			return err
		},
		"Map": func(c *Conn, _ *int64) (err error) {
			for err == nil { // until the credits end
				_, err = c.Map(make([]byte, 8), 0)
			}
			return err
		},
	} {
		for _, reads := range []bool{false, true} { // a reader may wait for completions
			t.Run(name, func(t *testing.T) {
				bothModes(t, func(t *testing.T, p roce.Progress) {
					bed := newTestbed(t, testbed.Config{Options: []roce.Option{roce.WithProgress(p)}})
					l := listenOn(t, bed, Config{Messages: minMessages, Mappings: 128})
					client, server := dial(t, bed, l, Config{})
					if reads {
						go func() { _, _ = client.Read(make([]byte, 1)) }() // until Close
					}
					var sent int64
					failed := make(chan error, 1)
					go func() { failed <- send(client, &sent) }()
					time.Sleep(50 * time.Millisecond) // until it waits, on most machines
					stop := drive(bed.Dev[1])
					err := client.CloseWrite()
					stop()
					check(t, err)
					wantErrno(t, "the call that sends", <-failed, syscall.EPIPE)
					if n, err := io.Copy(io.Discard, server); n != sent || err != nil {
						t.Errorf("the peer reads %d bytes, %v, want %d", n, err, sent)
					}
				})
			})
		}
	}
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

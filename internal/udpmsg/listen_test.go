package udpmsg

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A socket is prepared before it has an address and can receive.
func TestListenWith(t *testing.T) {
	a := netip.MustParseAddr("127.93.1.7")
	failure := errors.New("failure")
	for _, want := range []error{failure, nil} {
		l, err := ListenWith(a, 1, true, func(fd int) error {
			name, err := unix.Getsockname(fd)
			if err != nil {
				return err
			}
			if port := name.(*unix.SockaddrInet4).Port; port != 0 {
				t.Errorf("the socket is bound to port %d before it is prepared", port)
			}
			return want
		})
		if !errors.Is(err, want) {
			t.Fatalf("ListenWith() = %v, want %v", err, want)
		}
		if err == nil {
			_ = unix.Close(l.FD)
		}
	}
}

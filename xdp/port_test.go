package xdp

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/xdp/veth"
	"golang.org/x/sys/unix"
)

// modesToTest are all that a veth can do.
var modesToTest = []Mode{Generic, Native}

// modesFor are those that it can do at an MTU: without multi-buffer, native mode takes some 3500 bytes at most.
func modesFor(mtu int) []Mode {
	if mtu > 3500 && !linux66() {
		return []Mode{Generic}
	}
	return modesToTest
}

// Frames of every size up to the MTU cross both ways, in both modes; those of more than a chunk
// (3840 bytes received, 4096 sent) are contiguous on arrival.
func TestFramesBothWays(t *testing.T) {
	for _, mtu := range []int{1500, 4200} {
		for _, mode := range modesFor(mtu) {
			t.Run(fmt.Sprintf("%v/mtu%d", mode, mtu), func(t *testing.T) {
				pair := newPair(t, veth.Options{MTU: mtu})
				a, b := openEnd(t, &pair.A, Options{Mode: mode}), openEnd(t, &pair.B, Options{Mode: mode})
				if want := "afxdp-" + mode.String(); a.Info().Datapath != want {
					t.Errorf("datapath %q, want %q", a.Info().Datapath, want)
				}
				if a.multi != b.multi || (!a.multi && linux66()) {
					t.Error("multi-buffer is not used")
				}
				mtu := a.Info().MTU // less than asked for where the kernel has no multi-buffer
				var frames [][]byte
				for n := 0; n <= mtu-28; n += 97 {
					frames = append(frames, packet{}.build(pattern(n, n)))
				}
				for _, n := range []int{3840 - 42 - 1, 3840 - 42, 3840 - 42 + 1, 4096 - 42 - 1, 4096 - 42, 4096 - 42 + 1, mtu - 28} {
					if n <= mtu-28 {
						frames = append(frames, packet{}.build(pattern(n, n)))
					}
				}
				exchange(t, a, b, frames...)
				exchange(t, b, a, frames...)
			})
		}
	}
}

// linux66 says whether the kernel is 6.6 or later: AF_XDP sockets take frames of several buffers since then.
func linux66() bool {
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) != nil {
		return false
	}
	if _, err := fmt.Sscanf(strings.ReplaceAll(unix.ByteSliceToString(u.Release[:]), ".", " "), "%d %d", &major, &minor); err != nil {
		return false
	}
	return major > 6 || (major == 6 && minor >= 6)
}

// Without multi-buffer a frame has to fit a chunk less the kernel's headroom, and the port's MTU says so. Native mode is refused
// where the driver could send more at once; auto mode is generic there and takes the frames.
func TestWithoutMultiBuffer(t *testing.T) {
	no := false
	pair := newPair(t, veth.Options{MTU: 4200})
	if p, err := Open(pair.A.Iface, Options{NetNS: pair.A.Fd(), Mode: Native, MultiBuffer: &no}); !errors.Is(err, ErrUnsupported) {
		if p != nil {
			p.Close()
		}
		t.Errorf("native at MTU 4200: %v", err)
	}
	a, b := openEnd(t, &pair.A, Options{MultiBuffer: &no}), openEnd(t, &pair.B, Options{MultiBuffer: &no})
	const room = chunkSize - headroom
	if i := a.Info(); i.MaxFrame != room || i.MTU != room-etherLen-vlanLen {
		t.Errorf("%+v", i)
	}
	exchange(t, a, b, packet{}.build(pattern(room-42, 1)), packet{}.build(pattern(8, 2)))
	sendUDP(t, &pair.A, "10.77.0.2:4791", make([]byte, room-42+1))
	if got := receive(t, b, 1, 50*time.Millisecond); len(got) != 0 || b.Stats().RxDropped != 1 {
		t.Errorf("a byte too long: %d arrived, %+v", len(got), b.Stats())
	}
	exchange(t, a, b, packet{}.build(pattern(8, 3)))
}

// Busy-polling, zero-copy switched off and queues chosen change nothing that a caller sees.
func TestOptionsWork(t *testing.T) {
	no := false
	for _, mode := range modesToTest {
		pair := newPair(t, veth.Options{Queues: 2})
		o := Options{Mode: mode, BusyPoll: 20, ZeroCopy: &no, Queues: 1, RingSize: 128, Chunks: 100}
		a, b := openEnd(t, &pair.A, o), openEnd(t, &pair.B, o)
		if q := a.Info().Queues; q != 1 {
			t.Errorf("%d queues", q)
		}
		var bufs [200]driver.Buf
		if n := a.Alloc(bufs[:]); n != 100 {
			t.Errorf("%d transmit buffers", n)
		} else {
			a.Free(bufs[:n])
		}
		exchange(t, a, b, packet{}.build(pattern(64, 1)), packet{v6: true}.build(pattern(1000, 2)))
	}
}

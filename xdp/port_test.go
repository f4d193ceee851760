//go:build linux

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

// modesToTest are the modes that a veth supports.
var modesToTest = []Mode{Generic, Native}

// modesFor returns the modes that a veth supports at an MTU. Without multi-buffer, native mode
// supports about 3500 bytes.
func modesFor(mtu int) []Mode {
	if mtu > 3500 && !linux66() {
		return []Mode{Generic}
	}
	return modesToTest
}

// Frames of every size up to the MTU cross in both directions and both modes. Frames of more than a
// chunk need multi-buffer.
func TestFramesBothWays(t *testing.T) {
	for _, mtu := range []int{1500, 4200} {
		for _, mode := range modesFor(mtu) {
			t.Run(fmt.Sprintf("%v/mtu%d", mode, mtu), func(t *testing.T) {
				pair := newPair(t, veth.Options{MTU: mtu})
				a, b := openEnd(t, &pair.A, Options{Mode: mode}), openEnd(t, &pair.B,
					Options{Mode: mode})
				if want := "afxdp-" + mode.String(); a.Info().Datapath != want {
					t.Errorf("Datapath = %q, want %q", a.Info().Datapath, want)
				}
				if a.multi != b.multi || (!a.multi && linux66()) {
					t.Error("multi-buffer is not used")
				}
				mtu := a.Info().MTU // less than requested if the kernel has no multi-buffer
				var there, back [][]byte
				add := func(n int) {
					there = append(there, packet{}.build(pattern(n, n)))
					back = append(back, packet{back: true}.build(pattern(n, n)))
				}
				for n := 0; n <= mtu-28; n += 97 {
					add(n)
				}
				for _, n := range []int{3840 - 42 - 1, 3840 - 42, 3840 - 42 + 1, 4096 - 42 - 1,
					4096 - 42, 4096 - 42 + 1, mtu - 28} {
					if n <= mtu-28 {
						add(n)
					}
				}
				exchange(t, a, b, there...)
				exchange(t, b, a, back...)
			})
		}
	}
}

// linux66 reports whether the kernel is 6.6 or later and supports multi-buffer AF_XDP sockets.
func linux66() bool {
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) != nil {
		return false
	}
	if _, err := fmt.Sscanf(strings.ReplaceAll(unix.ByteSliceToString(u.Release[:]), ".", " "),
		"%d %d", &major, &minor); err != nil {
		return false
	}
	return major > 6 || (major == 6 && minor >= 6)
}

// Without multi-buffer a frame must fit in a chunk without the headroom, and Info reports the MTU
// accordingly. Native mode is refused at larger MTUs.
func TestWithoutMultiBuffer(t *testing.T) {
	no := false
	pair := newPair(t, veth.Options{MTU: 4200})
	if p, err := Open(pair.A.Iface,
		Options{NetNS: pair.A.Fd(), Mode: Native, MultiBuffer: &no}); !errors.Is(err,
		ErrUnsupported) {
		if p != nil {
			p.Close()
		}
		t.Errorf("Open in native mode at MTU 4200: %v", err)
	}
	a, b := openEnd(t, &pair.A, Options{MultiBuffer: &no}), openEnd(t, &pair.B,
		Options{MultiBuffer: &no})
	const capacity = chunkSize - headroom
	if i := a.Info(); i.MaxFrame != capacity || i.MTU != capacity-etherLen-vlanLen {
		t.Errorf("Info() = %+v", i)
	}
	exchange(t, a, b, packet{}.build(pattern(capacity-42, 1)), packet{}.build(pattern(8, 2)))
	sendUDP(t, &pair.A, "10.77.0.2:4791", make([]byte, capacity-42+1))
	if got := receive(t, b, 1, 50*time.Millisecond); len(got) != 0 || b.Stats().RxDropped != 1 {
		t.Errorf("received %d frames that are one byte too long, stats %+v", len(got), b.Stats())
	}
	exchange(t, a, b, packet{}.build(pattern(8, 3)))
}

// Busy-polling, disabled zero-copy and a chosen number of queues change nothing for the caller.
func TestOptionsWork(t *testing.T) {
	no := false
	for _, mode := range modesToTest {
		pair := newPair(t, veth.Options{Queues: 2})
		o := Options{Mode: mode, BusyPoll: 20, ZeroCopy: &no, Queues: 1, RingSize: 128, Chunks: 100}
		a, b := openEnd(t, &pair.A, o), openEnd(t, &pair.B, o)
		if q := a.Info().Queues; q != 1 {
			t.Errorf("Queues = %d", q)
		}
		var bufs [200]driver.Buf
		if n := a.Alloc(bufs[:]); n != 100 {
			t.Errorf("Alloc() = %d", n)
		} else {
			a.Free(bufs[:n])
		}
		exchange(t, a, b, packet{}.build(pattern(64, 1)), packet{v6: true}.build(pattern(1000, 2)))
	}
}

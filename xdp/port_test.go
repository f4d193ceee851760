package xdp

import (
	"fmt"
	"strings"
	"testing"

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

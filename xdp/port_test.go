package xdp

import (
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/xdp/veth"
)

// modesToTest are all that a veth can do.
var modesToTest = []Mode{Generic, Native}

// Frames of every size up to the MTU cross both ways, in both modes; those of more than a chunk
// (3840 bytes received, 4096 sent) are contiguous on arrival.
func TestFramesBothWays(t *testing.T) {
	for _, mode := range modesToTest {
		for _, mtu := range []int{1500, 4200} {
			t.Run(fmt.Sprintf("%v/mtu%d", mode, mtu), func(t *testing.T) {
				pair := newPair(t, veth.Options{MTU: mtu})
				a, b := openEnd(t, &pair.A, Options{Mode: mode}), openEnd(t, &pair.B, Options{Mode: mode})
				if want := "afxdp-" + mode.String(); a.Info().Datapath != want {
					t.Errorf("datapath %q, want %q", a.Info().Datapath, want)
				}
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

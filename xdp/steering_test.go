//go:build linux

package xdp

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/xdp/veth"
	"golang.org/x/sys/unix"
)

// packetSocket opens a socket that receives every frame that reaches the kernel on this side of the
// pair.
func packetSocket(t testing.TB, e *veth.End) int {
	t.Helper()
	fd := -1
	err := e.Do(func() (err error) {
		// In network byte order on a little-endian machine.
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
			&unix.Timeval{Usec: 500_000}); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: e.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// kernelSaw reports whether the packet socket received a frame that ends in mark.
func kernelSaw(fd int, mark []byte) bool {
	b := make([]byte, 1<<16)
	for {
		n, err := unix.Read(fd, b)
		if err != nil {
			return false
		}
		if bytes.HasSuffix(b[:n], mark) {
			return true
		}
	}
}

// UDP to port 4791 of an own address and MAC in plain IPv4 or IPv6, untagged or priority-tagged,
// goes to the port. All other frames go to the kernel.
func TestSteering(t *testing.T) {
	const vlan, qinq = 0x8100, 0x88a8
	group4, group6 := addr("239.1.2.4"), addr("ff0e::4791")
	broadcastMAC := bth.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	cases := []struct {
		name string
		packet
		ours bool
	}{
		{"IPv4", packet{}, true},
		{"IPv6", packet{v6: true}, true},
		{"IPv4 with a priority tag", packet{vlans: []uint16{vlan}, tci: 5 << 13}, true},
		{"IPv6 with a priority tag", packet{v6: true, vlans: []uint16{vlan}, tci: 5 << 13}, true},
		{"IPv4 group", packet{to: group4, dst: multicastMAC(group4)}, true},
		{"IPv6 group", packet{v6: true, to: group6, dst: multicastMAC(group6)}, true},
		{"IPv4 in a VLAN", packet{vlans: []uint16{vlan}}, false},
		{"IPv6 in a VLAN", packet{v6: true, vlans: []uint16{vlan}}, false},
		{"IPv4 with a service tag", packet{vlans: []uint16{qinq}, tci: 5 << 13}, false},
		{"to another host through this one", packet{to: addr("10.77.0.3")}, false},
		{"to another IPv6 host through this one", packet{v6: true, to: addr("fd77::3")}, false},
		{"to another MAC", packet{dst: bth.MAC{0x02, 0x77, 0, 0, 0, 3}}, false},
		{"to another MAC, IPv6", packet{v6: true, dst: bth.MAC{0x02, 0x77, 0, 0, 0, 3}}, false},
		{"own address, broadcast MAC", packet{dst: broadcastMAC}, false},
		{"own address, MAC of a group", packet{dst: multicastMAC(group4)}, false},
		{"group, own MAC", packet{to: group4}, false},
		{"group that was not joined", packet{to: group4.Next(),
			dst: multicastMAC(group4.Next())}, false},
		{"group with the MAC of a joined one", packet{to: addr("239.129.2.4"),
			dst: multicastMAC(group4)}, false},
		{"limited broadcast", packet{to: addr("255.255.255.255"), dst: broadcastMAC}, false},
		{"subnet broadcast", packet{to: addr("10.77.0.255"), dst: broadcastMAC}, false},
		{"IPv4-mapped address in IPv6", packet{v6: true, to: addr("::ffff:10.77.0.2")}, false},
		{"don't-fragment set", packet{frag: 0x4000}, true},
		{"two VLAN tags", packet{vlans: []uint16{qinq, vlan}}, false},
		{"another UDP port", packet{port: 4790}, false},
		{"another UDP port, IPv6", packet{v6: true, port: 4792}, false},
		{"the port's bytes swapped", packet{port: 4791>>8 | 4791&0xff<<8}, false},
		{"TCP", packet{proto: 6}, false},
		{"TCP over IPv6", packet{v6: true, proto: 6}, false},
		{"IPv4 options", packet{options: true}, false},
		{"IPv6 hop-by-hop header", packet{v6: true, options: true}, false},
		{"first fragment", packet{frag: 0x2000}, false},
		{"last fragment", packet{frag: 0x0010}, false},
	}
	for _, mode := range modesToTest {
		pair := newPair(t, veth.Options{})
		a, b := openEnd(t, &pair.A, Options{Mode: mode}), openEnd(t, &pair.B, Options{Mode: mode})
		for _, g := range []netip.Addr{group4, group6} {
			if err := b.JoinGroup(g); err != nil {
				t.Fatal(err)
			}
		}
		fd := packetSocket(t, &pair.B)
		for i, c := range cases {
			t.Run(fmt.Sprintf("%v/%s", mode, c.name), func(t *testing.T) {
				mark := fmt.Appendf(nil, "<%v %d>", mode, i)
				f := c.build(mark)
				send(t, a, f)
				patience := 2 * time.Second
				if !c.ours {
					if !kernelSaw(fd, mark) {
						t.Error("the kernel did not receive the frame")
					}
					patience = 0
				}
				got := receive(t, b, 1, patience)
				if c.ours && (len(got) != 1 || !bytes.Equal(got[0], f)) {
					t.Errorf("the port received %d frames: %x", len(got), got)
				}
				if !c.ours && len(got) != 0 {
					t.Errorf("the port received the frame")
				}
			})
		}
		// No frame of the port also went to the kernel.
		for i, c := range cases {
			if mark := fmt.Appendf(nil, "<%v %d>", mode, i); c.ours {
				send(t, a, c.build(mark))
			}
		}
		time.Sleep(10 * time.Millisecond)
		if kernelSaw(fd, []byte(">")) {
			t.Errorf("%v: the kernel also received a frame of the port", mode)
		}
	}
}

// A frame truncated at any length goes to the kernel and not to the port.
func TestShortFramesPass(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a, b := openEnd(t, &pair.A, Options{}), openEnd(t, &pair.B, Options{})
	for _, k := range []packet{{}, {v6: true}, {vlans: []uint16{0x8100}, tci: 5 << 13}} {
		f := k.build(nil)
		for n := minFrame; n < len(f); n++ {
			send(t, a, f[:n])
		}
		if got := receive(t, b, 1, 20*time.Millisecond); len(got) != 0 {
			t.Errorf("%+v: the port received a frame of %d bytes", k, len(got[0]))
		}
	}
}

// UDP to port 4791 from a kernel socket reaches the port. TCP on the same interface is not
// affected.
func TestOtherTrafficContinues(t *testing.T) {
	for _, mode := range modesToTest {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t, veth.Options{})
			openEnd(t, &pair.A, Options{Mode: mode})
			b := openEnd(t, &pair.B, Options{Mode: mode})
			for _, to := range []string{"10.77.0.2:4791", "[fd77::2]:4791"} {
				sendUDP(t, &pair.A, to, []byte("from the kernel"))
				got := receive(t, b, 1, 2*time.Second)
				if len(got) != 1 || !bytes.HasSuffix(got[0], []byte("from the kernel")) {
					t.Errorf("%s: the port received %q", to, got)
				}
			}
			for _, at := range []string{"10.77.0.2:0", "[fd77::2]:0"} {
				transfer(t, pair, at, 1<<20)
			}
		})
	}
}

func sendUDP(t *testing.T, e *veth.End, to string, payload []byte) {
	t.Helper()
	err := e.Do(func() error {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(payload)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// transfer sends n bytes over TCP from A to B and checks them.
func transfer(t *testing.T, pair *veth.Pair, at string, n int) {
	t.Helper()
	var ln net.Listener
	var out net.Conn
	err := pair.B.Do(func() (err error) {
		ln, err = net.Listen("tcp", at)
		return err
	})
	if err == nil {
		defer ln.Close()
		err = pair.A.Do(func() (err error) {
			out, err = net.DialTimeout("tcp", ln.Addr().String(), 5*time.Second)
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	want := pattern(n, 1)
	go func() {
		out.Write(want)
		out.Close()
	}()
	in, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	in.SetDeadline(time.Now().Add(10 * time.Second))
	got, err := io.ReadAll(in)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("received %d of %d bytes over TCP, %v", len(got), n, err)
	}
}

// With two queues the NIC distributes flows over both, and one port serves both.
func TestTwoQueues(t *testing.T) {
	for _, mode := range modesToTest {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t, veth.Options{Queues: 2})
			b := openEnd(t, &pair.B, Options{Mode: mode})
			if q := b.Info().Queues; q != 2 {
				t.Fatalf("Queues = %d", q)
			}
			const flows = 64
			for range flows {
				sendUDP(t, &pair.A, "10.77.0.2:4791", []byte("flow"))
			}
			seen := map[int]int{}
			var bufs [8]driver.Buf
			deadline := time.Now().Add(2 * time.Second)
			for seen[0]+seen[1] < flows && time.Now().Before(deadline) {
				b.Wait(10 * time.Millisecond)
				n := b.Receive(bufs[:])
				for _, f := range bufs[:n] {
					q, _ := untoken(f.Token)
					seen[q]++
				}
				b.Release(bufs[:n])
			}
			// Only a native program turns on NAPI on a veth. Without it a veth does not record the
			// queue, so in generic mode all frames are on queue 0.
			if seen[0]+seen[1] != flows || (mode == Native && (seen[0] == 0 || seen[1] == 0)) {
				t.Errorf("frames by queue: %v, want a total of %d", seen, flows)
			}
			a := openEnd(t, &pair.A, Options{Mode: mode})
			exchange(t, a, b, packet{}.build(pattern(100, 1)),
				packet{v6: true}.build(pattern(1000, 2)))
			exchange(t, b, a, packet{back: true}.build(pattern(100, 3)))
		})
	}
}

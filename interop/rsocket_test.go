//go:build interop

package interop_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/lab"
	"github.com/gorxe/gorxe/roce/rsocket"
)

// The programs on librdmacm's rsockets against package rsocket.

const portRcopy = 7427

// rsConfig has an entry for riostream's memory.
var rsConfig = rsocket.Config{Mappings: 1}

// rsocketDial connects to the program in the guest.
func rsocketDial(t *testing.T, r *rig, v variant, port uint16) *rsocket.Conn {
	t.Helper()
	cfg := rsConfig
	cfg.Connect.MTU = v.mtu
	c, err := rsocket.Dial(within(t), r.dev,
		netip.AddrPortFrom(r.Guests[0].Addr(v.v6), port).String(), cfg)
	check(t, err)
	return rsocketConn(t, c)
}

// rsocketAccept accepts the connection of a program in the guest.
func rsocketAccept(t *testing.T, r *rig, v variant, port uint16) *rsocket.Conn {
	t.Helper()
	l, err := rsocket.Listen(r.dev, netip.AddrPortFrom(r.HostAddr(v.v6), port).String(), rsConfig)
	check(t, err)
	stop := time.AfterFunc(patience, func() { _ = l.Close() })
	t.Cleanup(func() {
		stop.Stop()
		_ = l.Close()
	})
	c, err := l.AcceptConn()
	check(t, err)
	return rsocketConn(t, c)
}

func rsocketConn(t *testing.T, c *rsocket.Conn) *rsocket.Conn {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() }) // the test may have closed it
	check(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// counter is the sequence of bytes that the programs send and verify with -T v.
type counter byte

func (c *counter) fill(b []byte) {
	for i := range b {
		b[i] = byte(*c)
		*c++
	}
}

func (c *counter) verify(t *testing.T, b []byte) {
	t.Helper()
	for i := range b {
		if b[i] != byte(*c) {
			t.Fatalf("byte %d of a piece is %#x, want %#x", i, b[i], byte(*c))
		}
		*c++
	}
}

// rsPeer is gorxe's side of rstream.
type rsPeer struct {
	t       *testing.T
	c       *rsocket.Conn
	out, in counter
	buf     []byte
}

func (s *rsPeer) send(n int) {
	s.t.Helper()
	s.out.fill(s.buf[:n])
	if _, err := s.c.Write(s.buf[:n]); err != nil {
		s.t.Fatal(err)
	}
}

func (s *rsPeer) receive(n int) {
	s.t.Helper()
	if _, err := io.ReadFull(s.c, s.buf[:n]); err != nil {
		s.t.Fatal(err)
	}
	s.in.verify(s.t, s.buf[:n])
}

// end waits for the end of the peer's stream. A program that disconnects on a link that loses its
// last packets ends without one.
func (s *rsPeer) end(lossy bool) {
	s.t.Helper()
	n, err := s.c.Read(s.buf)
	if n != 0 || err != io.EOF && !lossy {
		s.t.Errorf("Read() = %d, %v at the end, want 0, EOF", n, err)
	}
	check(s.t, s.c.Close())
}

// rstream's numbers: -I iterations of -C transfers of -S bytes in each direction.
type rsNumbers struct{ iterations, transfers, size int }

var (
	rsFew  = rsNumbers{3, 40, 5000}
	rsMany = rsNumbers{2, 5, 1 << 20}
	rsTiny = rsNumbers{200, 3, 1}
)

func (n rsNumbers) String() string {
	return fmt.Sprintf("-I %d -C %d -S %d", n.iterations, n.transfers, n.size)
}

// rstream returns the scenario of a program that sends and receives streams.
func rstream(n rsNumbers) cmTool {
	command := fmt.Sprintf("rstream %v -T v", n)
	talk := func(t *testing.T, r *rig, c *rsocket.Conn, first, second func(*rsPeer, int)) {
		s := &rsPeer{t: t, c: c, buf: make([]byte, max(n.size, 16))}
		first(s, 16)
		second(s, 16)
		for range n.iterations {
			for range n.transfers {
				first(s, n.size)
			}
			for range n.transfers {
				second(s, n.size)
			}
		}
		s.end(r.lossy)
	}
	return cmTool{name: "rstream -T v", port: portCmatose,
		server: command + " -b %s", client: command + " -s %s",
		active: func(t *testing.T, r *rig, v variant) {
			talk(t, r, rsocketDial(t, r, v, portCmatose), (*rsPeer).send, (*rsPeer).receive)
		},
		passive: func(t *testing.T, r *rig, v variant) {
			talk(t, r, rsocketAccept(t, r, v, portCmatose), (*rsPeer).receive, (*rsPeer).send)
		}}
}

// optionTime is how long riostream may take from listening to setting its options.
const optionTime = 200 * time.Millisecond

// riostream returns the scenario of a program whose sides write into each other's memory. The last
// byte of a transfer is a number that the receiver polls.
func riostream(n rsNumbers) cmTool {
	command := fmt.Sprintf("riostream %v -T v", n)
	talk := func(t *testing.T, r *rig, c *rsocket.Conn, active bool) {
		memory, err := c.Map(bytes.Repeat([]byte{0xff}, n.size), 0)
		check(t, err)
		s := &rsPeer{t: t, c: c, buf: bytes.Repeat([]byte{0xff}, max(n.size, 16))}
		hello := make([]byte, 16) // which the programs do not verify
		send := func(marker byte) {
			for range n.transfers - 1 {
				_, err := c.WriteAt(s.buf[:n.size], 0)
				check(t, err)
			}
			s.out.fill(s.buf[:n.size-1])
			s.buf[n.size-1] = marker
			_, err := c.WriteAt(s.buf[:n.size], 0)
			check(t, err)
		}
		receive := func(marker byte) {
			for end := time.Now().Add(patience); memory.Load8(n.size-1) != marker; {
				if time.Now().After(end) {
					t.Fatalf("the peer's transfer %d does not arrive", marker)
				}
				r.dev.Progress()
			}
			s.in.verify(t, memory.Bytes()[:n.size-1])
		}
		if active {
			_, err = c.Write(hello)
			check(t, err)
		}
		_, err = io.ReadFull(c, hello)
		check(t, err)
		if !active {
			_, err = c.Write(hello)
			check(t, err)
		}
		for i := range n.iterations {
			if m := byte(2 * i); active {
				send(m)
				receive(m + 1)
			} else {
				receive(m)
				send(m + 1)
			}
		}
		s.end(r.lossy)
	}
	return cmTool{name: "riostream -T v", port: portCmatose,
		server: command + " -b %s", client: command + " -s %s",
		active: func(t *testing.T, r *rig, v variant) {
			// The server sets RDMA_IOMAPSIZE after it listens. A thread of librdmacm accepts
			// earlier requests without entries for memory.
			time.Sleep(optionTime)
			talk(t, r, rsocketDial(t, r, v, portCmatose), true)
		},
		passive: func(t *testing.T, r *rig, v variant) {
			talk(t, r, rsocketAccept(t, r, v, portCmatose), false)
		}}
}

// Messages of rcopy: a header, and what follows it, little-endian.
const (
	rcopyOpen, rcopyClose, rcopyWrite = 1, 2, 3
	rcopyReply                        = 0x80
	rcopyHeader                       = 16
)

// rcopyMessage returns a message: version 0, command, length 2, data 4, number 8.
func rcopyMessage(command byte, data uint32, payload []byte) []byte {
	b := []byte{0, command}
	b = binary.LittleEndian.AppendUint16(b, uint16(rcopyHeader+len(payload)))
	b = binary.LittleEndian.AppendUint32(b, data)
	b = binary.LittleEndian.AppendUint64(b, 0)
	return append(b, payload...)
}

// rcopyAnswer reads a reply, which must be one of success.
func rcopyAnswer(c net.Conn, command byte) error {
	b := make([]byte, rcopyHeader)
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if want := rcopyMessage(command|rcopyReply, 0, nil); !bytes.Equal(b, want) {
		return fmt.Errorf("rcopy's reply is % x, want % x", b, want)
	}
	return nil
}

// rcopyFile is what is copied.
func rcopyFile(n int) []byte {
	b := make([]byte, n)
	var c counter
	for i := 0; i < len(b); i += 1000 {
		c.fill(b[i:min(i+999, len(b))])
	}
	return b
}

// rcopyActive copies a file of n bytes to the server rcopy in the guest.
func rcopyActive(t *testing.T, r *rig, v variant, n int) {
	k := r.guestProgram(t, "rcopy")
	r.awaitCM(t, portRcopy)
	c := rsocketDial(t, r, v, portRcopy)
	file := rcopyFile(n)
	request := func(command byte, data uint32, payload []byte) {
		_, err := c.Write(rcopyMessage(command, data, payload))
		check(t, err)
	}
	request(rcopyOpen, 0o644, append([]byte("/tmp/copy"), make([]byte, 7)...))
	check(t, rcopyAnswer(c, rcopyOpen))
	request(rcopyWrite, 0, binary.LittleEndian.AppendUint64(nil, uint64(len(file))))
	_, err := io.Copy(c, bytes.NewReader(file))
	check(t, err)
	check(t, rcopyAnswer(c, rcopyWrite))
	request(rcopyClose, 0, nil)
	check(t, rcopyAnswer(c, rcopyClose))
	check(t, c.Close())
	want := sumOf(file)
	if got := r.guest(t, "sha256sum < /tmp/copy; rm /tmp/copy"); got != want {
		t.Errorf("chesha256sum of the copy is %q, want %q", got, want)
	}
	check(t, k.p.Signal(9))
}

// rcopyPassive takes a file of n bytes from the client rcopy in the guest.
func rcopyPassive(t *testing.T, r *rig, v variant, n int) {
	started := make(chan *guestProgram, 1)
	r.guest(t, fmt.Sprintf("head -c %d /dev/urandom > /tmp/source", n))
	go func() {
		time.Sleep(100 * time.Millisecond) // gorxe listens first; the client repeats its request
		p, err := r.Guests[0].Start("sh", "-c",
			fmt.Sprintf("exec rcopy /tmp/source %v:/there", r.HostAddr(v.v6)))
		if err != nil {
			t.Errorf("start rcopy: %v", err)
			close(started)
			return
		}
		started <- &guestProgram{p}
	}()
	c := rsocketAccept(t, r, v, portRcopy)
	var file []byte
	for done := false; !done; {
		h := make([]byte, rcopyHeader)
		_, err := io.ReadFull(c, h)
		check(t, err)
		payload := make([]byte, binary.LittleEndian.Uint16(h[2:])-rcopyHeader)
		_, err = io.ReadFull(c, payload)
		check(t, err)
		if h[1] == rcopyWrite {
			file = make([]byte, binary.LittleEndian.Uint64(payload))
			_, err = io.ReadFull(c, file)
			check(t, err)
		}
		_, err = c.Write(rcopyMessage(h[1]|rcopyReply, 0, nil))
		check(t, err)
		done = h[1] == rcopyClose
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !r.lossy {
		t.Errorf("Read() = %v at the end, want EOF", err)
	}
	check(t, c.Close())
	if k := <-started; k != nil {
		if out, err := k.wait(patience); err != nil {
			t.Errorf("rcopy: %v\n%s", err, out)
		}
	}
	if want, got := r.guest(t, "sha256sum < /tmp/source; rm /tmp/source"), sumOf(file); got != want {
		t.Errorf("chesha256sum of the copy is %q, want %q", got, want)
	}
}

// sumOf returns what sha256sum prints for standard input.
func sumOf(b []byte) string { return fmt.Sprintf("%x  -\n", sha256.Sum256(b)) }

// rcopy returns the scenario of a file of n bytes.
func rcopy(n int) func(t *testing.T, r *rig, v variant) {
	return func(t *testing.T, r *rig, v variant) {
		if v.gorxePassive {
			rcopyPassive(t, r, v, n)
		} else {
			rcopyActive(t, r, v, n)
		}
	}
}

// TestRsockets runs librdmacm's programs on rsockets against gorxe. The bad links are not in the
// core.
func TestRsockets(t *testing.T) {
	rio, many, tiny := riostream(rsFew), rstream(rsMany), rstream(rsTiny)
	two := []variant{{lab.MaxMTU, 4096, false, false}, {lab.MaxMTU, 4096, false, true}}
	both := append(two, variant{lab.MaxMTU, 1024, true, false}, variant{lab.MaxMTU, 1024, true, true})
	if *coreFlag {
		both = two
	}
	play(t, rio.name, both, rio.run)
	play(t, "rcopy", two, rcopy(3<<20+12345)) // it knows only IPv4
	play(t, "rstream -T v, 1 MiB", both, many.run)
	if *coreFlag {
		return
	}
	play(t, "rstream -T v, 1 byte", both, tiny.run)
	for _, w := range badWires {
		for _, towardsGuest := range []bool{false, true} {
			where := " from the kernel"
			if towardsGuest {
				where = " to the kernel"
			}
			lossy := func(f func(*testing.T, *rig, variant)) func(*testing.T, *rig, variant) {
				return func(t *testing.T, r *rig, v variant) {
					before := patience
					patience = lossyPatience << slow
					r.lossy = true
					t.Cleanup(func() { patience, r.lossy = before, false })
					r.fault(t, towardsGuest, w.rule)
					f(t, r, v)
				}
			}
			few := rstream(rsFew)
			play(t, few.name+", "+w.name+where, two, lossy(few.run))
			play(t, rio.name+", "+w.name+where, two, lossy(rio.run))
			play(t, "rcopy, "+w.name+where, two, lossy(rcopy(200_000)))
		}
	}
}

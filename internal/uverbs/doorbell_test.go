package uverbs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
)

// openFile opens the file of the context as the program has it open.
func (p *program) openFile(t *testing.T) int {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", p.ctx.FD()), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// Doorbells in the file of the context start work requests, garbage does not, and their memory is
// freed.
func TestDoorbells(t *testing.T) {
	t.Run("goroutine", func(t *testing.T) {
		a, b := connected(t, 2, doorbellSize)
		testDoorbells(t, a, b)
	})
	t.Run("owner of a UDP port", func(t *testing.T) {
		a, b := connectedUDP(t)
		if !a.dev.watched {
			t.Error("the port does not watch for doorbells")
		}
		testDoorbells(t, a, b)
	})
	t.Run("owner with many QPs", func(t *testing.T) {
		a, b := connectedUDP(t)
		for range maxScanned {
			a.setup(2, doorbellSize)
		}
		testDoorbells(t, a, b)
	})
}

const doorbellSize = 64

// connectedUDP returns QPs on two devices with UDP sockets.
func connectedUDP(t *testing.T) (a, b *queues) {
	t.Helper()
	var q [2]*queues
	for i := range q {
		dev, err := roce.Open(udp.RandomLoopback().String(), roce.WithPort(roce.PortUDP))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dev.Close() })
		q[i] = newProgram(t, dev).setup(2, doorbellSize)
	}
	q[0].connect(q[1], 2)
	q[1].connect(q[0], 2)
	return q[0], q[1]
}

func testDoorbells(t *testing.T, a, b *queues) {
	const size, rounds = doorbellSize, 300
	fd := a.openFile(t)
	if _, err := unix.Seek(fd, DoorbellOffset, unix.SEEK_SET); err != nil {
		t.Fatal(err)
	}
	write := func(bell []byte) {
		t.Helper()
		if n, err := unix.Write(fd, bell); n != len(bell) || err != nil {
			t.Fatalf("Write() = %d, %v", n, err)
		}
	}
	write(bytes.Repeat([]byte{0xff}, bellHole+7*bellSize))
	for i := range rounds {
		fill(a.mem, byte(i))
		if !a.sq.post(a.sendWR(uint64(i), 0, sendSignaled, mr.AddrOf(b.mem), uint64(b.rkey),
			size)) {
			t.Fatal("the send queue is full")
		}
		write(enc(uint32(cmdPostSend), uint16(8), uint16(3), uint64(0), a.qp, uint32(0),
			make([]byte, 8)))
		want(t, a.wait(a.cring), uint64(i), 0, 1)
		if !bytes.Equal(a.mem, b.mem) {
			t.Fatalf("round %d: the memory of the peer differs", i)
		}
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		at, err := unix.Seek(a.ctx.FD(), DoorbellOffset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || at >= DoorbellOffset+bellHole {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("old doorbells still occupy memory at offset %d", at-DoorbellOffset)
		}
	}
	if err := unix.Ftruncate(fd, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("Ftruncate() = %v, want EPERM: the file is sealed", err)
	}
}

// While all QPs of a program are busy on a crowded host, its doorbells do not wake the owner. When
// that ends, they do, and those from before are not lost.
func TestQuietDoorbells(t *testing.T) {
	a, b := connectedUDP(t) // the peer has no receives, so SENDs stay in progress
	const send = 2
	for known := false; !known; { // the round trip time: that of a repeated packet does not count
		a.post(a.sendWR(1, 0, sendSignaled, mr.AddrOf(b.mem), uint64(b.rkey), 1))
		want(t, a.wait(a.cring), 1, 0, 1)
		a.dev.do(func() { known = a.dev.queues[0].inner.PathRTT() > 0 })
	}
	fd := a.openFile(t)
	if _, err := unix.Seek(fd, DoorbellOffset, unix.SEEK_SET); err != nil {
		t.Fatal(err)
	}
	bell := enc(uint32(cmdPostSend), uint16(8), uint16(3), uint64(0), a.qp, uint32(0),
		make([]byte, 8))
	ring := func() (heard bool) {
		if n, err := unix.Write(fd, bell); n != len(bell) || err != nil {
			t.Errorf("Write() = %d, %v", n, err)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(a.dev.bells.fd), Events: unix.POLLIN}}, 0)
		if err != nil {
			t.Error(err)
		}
		a.dev.bells.drain(true)
		return n > 0
	}
	post := func(i int) {
		if !a.sq.post(a.sendWR(uint64(i), send, 0, 0, 0, 1)) {
			t.Error("the send queue is full")
		}
	}
	a.dev.loop.Do(func(now qp.Time) { // the owner does not sleep meanwhile
		a.dev.Sleeps(true)
		if !ring() {
			t.Error("a doorbell of an idle QP is quiet")
		}
		for i := range busyRequests {
			post(i)
		}
		a.dev.Sleeps(true)
		if !ring() || a.dev.Busy() {
			t.Error("a doorbell is quiet, or the device is busy, but nothing is in progress")
		}
		a.dev.Doorbells(false, false)
		a.dev.engine.HandleDoorbells(now)
		a.dev.Sleeps(false)
		if !ring() {
			t.Error("a doorbell is quiet, but the host is not crowded")
		}
		a.dev.busyRTT = 1
		a.dev.Sleeps(true)
		if !ring() {
			t.Error("a doorbell is quiet, but the path is long")
		}
		a.dev.busyRTT = math.MaxInt64
		a.dev.Sleeps(true)
		if ring() || !a.dev.Busy() {
			t.Error("a doorbell of a busy QP wakes the owner, or the device is not busy")
		}
		post(busyRequests)
		if ring() {
			t.Error("another doorbell of a busy QP wakes the owner")
		}
		if !a.dev.Sleeps(false) {
			t.Error("a quiet doorbell is lost")
		}
		if !ring() {
			t.Error("a doorbell is still quiet")
		}
	})
}

// If the queue of inotify overflows, no doorbell is lost.
func TestDoorbellsLost(t *testing.T) {
	const size = 64
	a, b := connected(t, 2, size)
	fd := a.openFile(t)
	bells := a.dev.bells
	bells.mu.Lock() // events of the context are not recognized from now on
	delete(bells.watches, a.ctx.watch)
	a.ctx.watch = -2
	bells.watches[a.ctx.watch] = a.ctx
	bells.mu.Unlock()
	if !a.sq.post(a.sendWR(1, 0, sendSignaled, mr.AddrOf(b.mem), uint64(b.rkey), size)) {
		t.Fatal("the send queue is full")
	}
	bell := enc(uint32(cmdPostSend), uint16(8), uint16(3), uint64(0), a.qp, uint32(0),
		make([]byte, 8))
	if n, err := unix.Pwrite(fd, bell, DoorbellOffset); n != len(bell) || err != nil {
		t.Fatalf("Pwrite() = %d, %v", n, err)
	}
	bells.handle(enc(int32(-1), uint32(unix.IN_Q_OVERFLOW), uint64(0)), false)
	want(t, a.wait(a.cring), 1, 0, 1)
}

// A program that makes the file of doorbells very long does not stop the device.
func TestDoorbellsWithoutEnd(t *testing.T) {
	const size = 64
	a, b := connected(t, 2, size)
	fd := a.openFile(t)
	if !a.sq.post(a.sendWR(1, 0, sendSignaled, mr.AddrOf(b.mem), uint64(b.rkey), size)) {
		t.Fatal("the send queue is full")
	}
	if err := unix.Ftruncate(fd, 1<<60); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(fd, make([]byte, bellSize), DoorbellOffset); err != nil {
		t.Fatal(err)
	}
	want(t, a.wait(a.cring), 1, 0, 1)
	openProgram(t, a.dev).ctx.Close()
}

// positioner is a Caller that knows the program's open file.
type positioner struct {
	Caller
	fd int
}

func (p positioner) SetPosition(pos int64) error {
	_, err := unix.Seek(p.fd, pos, unix.SEEK_SET)
	return err
}

// Doorbells that are not intercepted fail while no queue pair can send.
func TestDoorbellAfterReset(t *testing.T) {
	a, b := connected(t, 2, 64)
	fd := a.openFile(t)
	a.call = positioner{a.call, fd}
	bell := enc(uint32(cmdPostSend), uint16(8), uint16(3), uint64(0), a.qp, uint32(0),
		make([]byte, 8))
	if err := a.call.(Positioner).SetPosition(DoorbellOffset); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(2) {
		if !a.sq.post(a.sendWR(i, 0, sendSignaled, mr.AddrOf(b.mem), uint64(b.rkey), 8)) {
			t.Fatal("the send queue is full")
		}
		if n, err := unix.Write(fd, bell); n != len(bell) || err != nil {
			t.Fatalf("Write() = %d, %v", n, err)
		}
		want(t, a.wait(a.cring), i, 0, 1)
		a.modify(maskState, 0, nil, 0) // RESET
		if _, err := unix.Write(fd, bell); !errors.Is(err, unix.EINVAL) {
			t.Errorf("doorbell after a reset = %v, want EINVAL", err)
		}
		b.modify(maskState, 0, nil, 0)
		a.connect(b, 2)
		b.connect(a, 2)
	}
}

// The owner of the loop does not read doorbells as long as there are any: programs could keep it
// busy.
func TestDrainOnce(t *testing.T) {
	b, err := newBells()
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	var contexts [2]*Context
	var files [2]int // as programs have them open: a write to the memfd itself is no event
	for i := range contexts {
		f, err := newFile(maxRings, unlimited, func(int) {})
		if err != nil {
			t.Fatal(err)
		}
		defer f.close()
		contexts[i] = &Context{file: f}
		if err := b.add(contexts[i]); err != nil {
			t.Fatal(err)
		}
		files[i] = (&program{ctx: contexts[i]}).openFile(t)
	}
	const events = 1000 // the kernel joins those that are equal
	for i := range int64(events) {
		_, err := unix.Pwrite(files[i%2], make([]byte, bellSize), DoorbellOffset+i*bellSize)
		if err != nil {
			t.Fatal(err)
		}
	}
	drains := 0
	for readable(b.fd) {
		b.drain(false)
		drains++
	}
	if want := events * unix.SizeofInotifyEvent / len(b.events); drains < want {
		t.Errorf("%d calls of drain() read %d doorbells, want at least %d", drains, events, want)
	}
	for i, c := range contexts {
		if want := int64(DoorbellOffset + (events-1+i)*bellSize); c.bell.read != want {
			t.Errorf("context %d: doorbells were read up to %d, want %d", i, c.bell.read, want)
		}
	}
}

// An owner that looks at all send queues does not read the doorbells of each event.
func TestDrainScanned(t *testing.T) {
	b, err := newBells()
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	f, err := newFile(maxRings, unlimited, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	c := &Context{file: f}
	if err := b.add(c); err != nil {
		t.Fatal(err)
	}
	fd := (&program{ctx: c}).openFile(t)
	for i := range int64(2 * unreadBells) {
		if _, err := unix.Pwrite(fd, make([]byte, bellSize), DoorbellOffset+i*bellSize); err != nil {
			t.Fatal(err)
		}
		b.drain(true)
		if readable(b.fd) {
			t.Fatalf("event %d was not read", i)
		}
		want := DoorbellOffset + (i+1)/unreadBells*unreadBells*bellSize
		if c.bell.read != want {
			t.Fatalf("after event %d doorbells were read up to %d, want %d", i, c.bell.read, want)
		}
	}
}

// readable reports whether a descriptor is readable.
func readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return n > 0 && err == nil
}

// unlimited allows a file any memory.
func unlimited(int) error { return nil }

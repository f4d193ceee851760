package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"

	"github.com/gorxe/gorxe/qp"
	"golang.org/x/sys/unix"
)

// DoorbellOffset is where programs write doorbells to the file of a context, if the writes are not
// intercepted: the position of the open file description that a program gets. Rings are below it.
const DoorbellOffset = 1 << 40

const (
	bellSize   = 32       // bytes of a doorbell, the command POST_SEND
	bellHandle = 16       // offset of the handle of the queue pair
	bellBatch  = 64       // doorbells that are read at once
	bellReads  = 64       // batches that are read one after the other
	bellHole   = 64 << 10 // bytes of old doorbells after which their memory is freed
)

// drainEvery is the number of steps without a sleep after which the owner reads the doorbells.
// Until then it finds new work requests in the rings.
const drainEvery = 64

// unreadBells is the number of reports of inotify about a context after which the owner reads its
// doorbells although it looks at all send queues anyway.
const unreadBells = 16

// maxScanned is the number of queue pairs up to which the owner looks at all send queues in each
// step.
const maxScanned = 64

// Events of a file that inotify reports, if doorbells wake the owner and if they do not. Files in
// memory cannot be moved.
const (
	loudEvents  = unix.IN_MODIFY
	quietEvents = unix.IN_MOVE_SELF
)

// busyRequests is the number of work requests in progress from which on a QP needs no doorbells: an
// ACK will soon wake the owner, and it will find the new ones then. If round trips took longer than
// busyRTT, they would wait too long.
const (
	busyRequests         = 16
	busyRTT      qp.Time = 1_000_000 // ns
)

// Positioner is a Caller that can set the position of the open file description that the call is
// about. With it, doorbells that are not intercepted fail if they would fail in the kernel.
type Positioner interface {
	Caller
	SetPosition(pos int64) error
}

// setDoorbells makes doorbells fail with EINVAL if no queue pair of the context can send, as after
// a reset, and ends that if one can. The kernel rejects writes of which the last byte would be
// beyond the largest position. The caller holds mu.
func (c *Context) setDoorbells(call Caller) {
	s, ok := call.(Positioner)
	if !ok {
		return
	}
	mute := true
	c.qps.Range(func(_, v any) bool {
		mute = v.(*queuePair).inner.State() < qp.RTR
		return mute
	})
	if mute == c.mute {
		return
	}
	pos := int64(math.MaxInt64)
	if !mute {
		var st unix.Stat_t
		if unix.Fstat(c.file.fd, &st) != nil {
			return
		}
		pos = (st.Size + bellSize - 1) &^ (bellSize - 1) // after all earlier doorbells
	}
	if s.SetPosition(pos) == nil {
		c.mute = mute
	}
}

// bells notices doorbells in the files of contexts. The owner of the loop reads them, because its
// port wakes up when there are any, or else a goroutine.
type bells struct {
	fd   int      // of inotify
	file *os.File // of the goroutine; nil: there is none
	done sync.WaitGroup

	mu      sync.Mutex
	watches map[int32]*Context
	events  [64 * unix.SizeofInotifyEvent]byte
}

// bell is the position in the doorbells of a context, and the number of reports since they were
// read. Guarded by bells.mu.
type bell struct {
	read, freed int64
	unread      int
	quiet       bool // doorbells do not wake the owner
	load        load // of Device.Sleeps
}

// load says whether the QPs of a context need doorbells.
type load uint8

const (
	loadNone load = iota // there are none that can send
	loadBusy             // all of them have busyRequests in progress
	loadIdle             // another one may get the next request
)

func newBells() (*bells, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		return nil, fmt.Errorf("uverbs: watch for doorbells: %w: raise "+
			"/proc/sys/fs/inotify/max_user_instances or the limit on open files (ulimit -n)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("uverbs: watch for doorbells: %w", err)
	}
	return &bells{fd: fd, watches: map[int32]*Context{}}, nil
}

// start starts the goroutine.
func (b *bells) start() {
	b.file = os.NewFile(uintptr(b.fd), "inotify")
	b.done.Go(b.run)
}

// add starts to watch the file of a context.
func (b *bells) add(c *Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, err := b.watch(c, loudEvents)
	if err != nil {
		return fmt.Errorf("uverbs: watch for doorbells: %w", err)
	}
	c.watch = int32(w)
	c.bell = bell{read: DoorbellOffset, freed: DoorbellOffset}
	b.watches[c.watch] = c
	return nil
}

// watch starts to watch the file of a context for events, or changes these.
func (b *bells) watch(c *Context, events uint32) (int, error) {
	return unix.InotifyAddWatch(b.fd, fmt.Sprintf("/proc/self/fd/%d", c.file.fd), events)
}

// remove ends watching. The caller closes the file afterwards.
func (b *bells) remove(c *Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watches[c.watch] == c {
		delete(b.watches, c.watch)
		_, _ = unix.InotifyRmWatch(b.fd, uint32(c.watch))
	}
}

func (b *bells) close() {
	if b.file == nil {
		_ = unix.Close(b.fd)
		return
	}
	_ = b.file.Close()
	b.done.Wait()
}

// run rings the doorbells until close.
func (b *bells) run() {
	for {
		n, err := b.file.Read(b.events[:])
		if err != nil {
			return
		}
		b.handle(b.events[:n], false)
	}
}

// drain rings the doorbells of the events that one read returns. Programs can cause events faster
// than the owner reads them. While there are more, its port's Wait returns at once. If scanned is
// true, the owner looks at all send queues, and most doorbells need not be read.
func (b *bells) drain(scanned bool) {
	if n, err := unix.Read(b.fd, b.events[:]); err == nil && n > 0 {
		b.handle(b.events[:n], scanned)
	}
}

// Doorbells implements loop.Guest.
func (d *Device) Doorbells(slept, rung bool) {
	d.loaded = loaded{} // by packets that were sent between two steps; see Loop.SendPending
	if !d.watched {
		return
	}
	d.undrained++
	if (slept || d.undrained >= drainEvery) && d.crowd.sample() {
		d.loop.SetCrowded(d.crowd.dense())
	}
	scanned := len(d.queues) <= maxScanned
	if rung || d.undrained >= drainEvery || !scanned {
		d.undrained = 0
		d.bells.drain(scanned)
		d.bells.ringAll(true) // their memory is freed
	}
	if scanned {
		for _, q := range d.queues {
			q.scan()
		}
	}
}

// Sleeps implements loop.Guest. On a crowded host, a wake-up of the owner interrupts the program or
// another device. So doorbells do not wake it if all QPs of their context are busy.
func (d *Device) Sleeps(crowded bool) bool {
	if !d.watched {
		return false
	}
	if crowded && len(d.queues) <= maxScanned {
		for _, q := range d.queues {
			q.c.bell.load = max(q.c.bell.load, q.load())
		}
	}
	ok := d.bells.setQuiet()
	return !ok || d.engine.DoorbellPending()
}

// Busy implements loop.Guest. With many queue pairs it returns false instead of looking at them.
func (d *Device) Busy() bool {
	if len(d.queues) > maxScanned {
		return false
	}
	busy := loadNone
	for _, q := range d.queues {
		busy = max(busy, q.load())
	}
	return busy == loadBusy
}

// load returns the effect of the QP on the load of its context.
func (q *queuePair) load() load {
	state, rtt := q.inner.State(), q.inner.PathRTT()
	switch {
	case state < qp.RTS:
		return loadNone
	case state != qp.RTS || rtt == 0 || rtt > q.c.dev.busyRTT:
		return loadIdle
	case q.inner.SQLen() < busyRequests: // those in the ring wait for a doorbell
		return loadIdle
	}
	return loadBusy
}

// scan rings the doorbell of a queue pair if the program has posted work requests.
func (q *queuePair) scan() {
	if p := q.sq.producer(); p != q.seen {
		q.seen = p
		_ = q.ring()
	}
}

// handle rings the doorbells that inotify events announce; see drain.
func (b *bells) handle(events []byte, scanned bool) {
	const header, mask = unix.SizeofInotifyEvent, 4
	for ; len(events) >= header; events = events[header:] {
		if binary.NativeEndian.Uint32(events[mask:])&unix.IN_Q_OVERFLOW != 0 {
			b.ringAll(false) // events have been lost
			continue
		}
		b.ring(int32(binary.NativeEndian.Uint32(events)), scanned)
	}
}

// ring rings the new doorbells of a context; see drain.
func (b *bells) ring(watch int32, scanned bool) {
	b.mu.Lock() // keeps the file open
	defer b.mu.Unlock()
	c := b.watches[watch]
	if c == nil {
		return
	}
	if c.bell.unread++; scanned && c.bell.unread < unreadBells {
		return
	}
	c.bell.unread = 0
	c.readBells()
}

// setQuiet makes doorbells of busy contexts quiet and the others loud, and clears the loads of the
// contexts. Where it makes them loud, it rings those from before. It returns false if the kernel
// refuses that.
func (b *bells) setQuiet() (ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ok = true
	for _, c := range b.watches {
		quiet := c.bell.load == loadBusy
		c.bell.load = loadNone
		switch {
		case quiet == c.bell.quiet:
		case quiet:
			_, err := b.watch(c, quietEvents)
			c.bell.quiet = err == nil
		default:
			_, err := b.watch(c, loudEvents)
			c.bell.quiet = err != nil
			ok = ok && err == nil
			c.readBells()
		}
	}
	return ok
}

// ringAll rings the new doorbells of all contexts, or only of quiet ones.
func (b *bells) ringAll(onlyQuiet bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.watches {
		if c.bell.quiet || !onlyQuiet {
			c.readBells()
		}
	}
}

// readBells reads the doorbells that the program has written. What it writes is not trusted: a
// handle that does not exist is ignored.
func (c *Context) readBells() {
	var buf [bellBatch * bellSize]byte
	for reads := 0; ; reads++ {
		if reads == bellReads {
			c.skipBells()
			break
		}
		n, err := unix.Pread(c.file.fd, buf[:], c.bell.read)
		if n -= max(n, 0) % bellSize; n <= 0 || err != nil {
			break
		}
		c.bell.read += int64(n)
		last := uint32(0)
		for b := buf[:n]; len(b) > 0; b = b[bellSize:] {
			if h := binary.NativeEndian.Uint32(b[bellHandle:]); h != last {
				_ = c.ring(h)
				last = h
			}
		}
	}
	if old := c.bell.read - c.bell.freed; old >= bellHole {
		_ = unix.Fallocate(c.file.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE,
			c.bell.freed, old)
		c.bell.freed = c.bell.read
	}
}

// skipBells rings all queue pairs instead of reading the doorbells up to the end of the file. The
// program can make the file longer faster than it is read.
func (c *Context) skipBells() {
	var st unix.Stat_t
	if unix.Fstat(c.file.fd, &st) != nil {
		return
	}
	c.bell.read += max(st.Size-c.bell.read, 0) &^ (bellSize - 1)
	c.qps.Range(func(handle, _ any) bool {
		_ = c.ring(handle.(uint32))
		return true
	})
}

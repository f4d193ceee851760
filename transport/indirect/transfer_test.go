package indirect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

const size = 64 << 10

// write performs a Write that must succeed and arrive.
func write(t *testing.T, a, b *end, off, n int, dba uint64, seed uint64) {
	t.Helper()
	want := fill(a.mr.Bytes()[off:off+n], seed)
	if err := a.conn.Write(within(t), a.mr, off, n, dba); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.mr.Bytes()[dba:][:n], want) {
		t.Fatal("data differs")
	}
}

// until waits for a condition that other goroutines establish.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came about that %s", what)
		}
	}
}

// A transfer whose answer arrives goes directly to its destination.
func TestDirect(t *testing.T) {
	v := newVirtual(t, Config{})
	v.write(4096, 1)
	if c := v.a.conn.Counters(); c.Direct != 1 || c.Indirect != 0 || c.Simulated != 0 {
		t.Errorf("%+v", c)
	}
}

// A refused transfer is parked, and moved when the memory is ready. Its user sees the same as
// always, but sooner: Acked before the responder could register anything.
func TestParkedUntilRegistered(t *testing.T) {
	a, b := newPair(t, loopback.Plan{}, Config{Timeout: 5 * time.Millisecond}, Config{})
	if !b.space.Hold(0, size) {
		t.Fatal("Hold")
	}
	want := fill(a.mr.Bytes()[:size], 2)
	if err := a.conn.Post(&Transfer{Kind: Write, MR: a.mr, Len: size, Cookie: 42}); err != nil {
		t.Fatal(err)
	}
	var evs [1]Event
	if _, err := a.Wait(within(t), evs[:]); err != nil || evs[0].Kind != Acked ||
		evs[0].Cookie != 42 {
		t.Fatalf("%+v, %v", evs[0], err)
	}
	serve(t, a)
	until(t, "everything is parked", func() bool { return b.conn.Counters().ParkedBytes == size })
	if !bytes.Equal(b.mr.Bytes()[:size], make([]byte, size)) {
		t.Error("memory that is not registered was written")
	}
	b.space.Free(0, size)
	until(t, "it is delivered", func() bool { return b.conn.Counters().Delivered == 1 })
	if !bytes.Equal(b.mr.Bytes()[:size], want) {
		t.Error("data differs")
	}
	until(t, "the initiator knows", func() bool {
		a.Endpoint.mu.Lock()
		defer a.Endpoint.mu.Unlock()
		return a.conn.m.Busy() == 0
	})
	ca, cb := a.conn.Counters(), b.conn.Counters()
	if ca.Indirect != 1 || ca.Simulated != 1 || ca.LateAnswers != 1 || cb.Parked != 1 ||
		cb.Straight != 0 || cb.MovedBytes != size || cb.ParkedBytes != 0 {
		t.Errorf("%+v\n%+v", ca, cb)
	}
}

// dropAnswers loses the first n datagrams of the responder.
func dropAnswers(link *loopback.Link, n int32) {
	var seen atomic.Int32
	link.SetFilter(1, 0, func(f []byte) loopback.Action {
		const bthAt, udSendOnly = 14 + 20 + 8, 0x64
		if len(f) > bthAt && f[bthAt] == udSendOnly &&
			binary.BigEndian.Uint32(f[bthAt+4:])&0xffffff != 1 && seen.Add(1) <= n {
			return loopback.Drop
		}
		return loopback.Pass
	})
}

// Only the answers were lost: the memory is ready when the data arrives, and nothing is parked.
func TestRegisteredIsNotParked(t *testing.T) {
	v := newVirtual(t, Config{})
	dropAnswers(v.link, 3)
	v.write(0, 3)
	ca, cb := v.a.conn.Counters(), v.b.conn.Counters()
	if ca.Indirect != 1 || ca.Timeouts != 2 || cb.Straight != 1 || cb.Parked != 0 ||
		cb.Refused != 0 {
		t.Errorf("%+v\n%+v", ca, cb)
	}
}

// One lost answer is asked for again. Only the second timeout makes a transfer indirect.
func TestIndirectAfterTwoTimeouts(t *testing.T) {
	v := newVirtual(t, Config{})
	dropAnswers(v.link, 1)
	v.write(0, 4)
	if c := v.a.conn.Counters(); c.Direct != 1 || c.Timeouts != 1 || c.Requests != 2 {
		t.Errorf("%+v", c)
	}
}

// The traditional method always waits for the valid answer.
func TestTraditional(t *testing.T) {
	a, b := newPair(t, loopback.Plan{}, Config{Timeout: 2 * time.Millisecond, Traditional: true},
		Config{Faults: Faults{Seed: 4, FailedRegistration: 0.7}})
	for k := range uint64(10) {
		write(t, a, b, 0, size, 4096, k)
	}
	if c := a.conn.Counters(); c.Direct != 10 || c.Indirect != 0 || c.InvalidAnswers == 0 {
		t.Errorf("%+v", c)
	}
}

// A full buffer delays transfers but loses and overwrites nothing: one slot, three transfers that
// cannot go to their destinations yet, and a fourth that can.
func TestFullBuffer(t *testing.T) {
	a, b := newPair(t, loopback.Plan{}, Config{Timeout: 2 * time.Millisecond}, Config{Slots: 1})
	b.space.Hold(0, 3*size)
	var want [4][]byte
	for k := range want {
		want[k] = fill(a.mr.Bytes()[k*size:][:size], uint64(k))
	}
	for k := range 3 {
		if err := a.conn.Post(&Transfer{Kind: Write, MR: a.mr, Off: k * size, Len: size,
			DBA: uint64(k * size)}); err != nil {
			t.Fatal(err)
		}
	}
	serve(t, a)
	until(t, "two wait for the slot that the third has",
		func() bool { return a.conn.Counters().BufferFull == 2 })
	if err := a.conn.Write(within(t), a.mr, 3*size, size, 3*size); err != nil {
		t.Error(err) // parked data does not block other transfers
	}
	if c := a.conn.Counters(); c.Indirect != 1 || c.Direct != 1 {
		t.Errorf("%+v", c)
	}
	b.space.Free(0, 3*size)
	until(t, "all are done", func() bool { return b.conn.Counters().Delivered == 4 })
	for k := range want {
		if !bytes.Equal(b.mr.Bytes()[k*size:][:size], want[k]) {
			t.Errorf("transfer %d: data differs", k)
		}
	}
}

// refused reports whether a transfer was abandoned because of its registration.
func refused(err error) bool {
	return errors.Is(err, ErrTransfer) && strings.Contains(err.Error(), StatusRefused.String())
}

// If registration never succeeds the transfer is abandoned, parked data is dropped and the slot is
// free.
func TestNeverRegistered(t *testing.T) {
	// Patience is long enough for a loaded machine to park the data before it ends: otherwise
	// nothing could be dropped.
	a, b := newPair(t, loopback.Plan{},
		Config{Timeout: 2 * time.Millisecond, Patience: time.Second}, Config{Slots: 1})
	b.space.Hold(0, size)
	ctx := within(t)
	for k := range 2 {
		failed := make(chan error, 1)
		go func() { failed <- a.conn.Write(ctx, a.mr, 0, size, 0) }()
		until(t, "the data is parked", func() bool { return b.conn.Counters().ParkedBytes == size })
		if err := <-failed; !refused(err) {
			t.Fatalf("%v; want ErrTransfer, %v", err, StatusRefused)
		}
		if c := b.conn.Counters(); c.Dropped != uint64(k+1) || c.ParkedBytes != 0 ||
			c.Delivered != 0 {
			t.Errorf("%+v", c)
		}
	}
	b.space.Free(0, size)
	write(t, a, b, 0, size, 0, 5)
}

// If the initiator dies, its parked data is dropped, and the next connection gets the whole buffer.
func TestInitiatorDies(t *testing.T) {
	a, b := newPair(t, loopback.Plan{}, Config{Timeout: 2 * time.Millisecond},
		Config{Silence: time.Second, IndirectBuffer: DefaultSlots * DefaultMaxTransfer})
	b.space.Hold(0, size)
	if err := a.conn.Post(&Transfer{Kind: Write, MR: a.mr, Len: size}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); b.conn.Counters().ParkedBytes != size; {
		var evs [1]Event
		if a.Poll(evs[:]); time.Now().After(end) {
			t.Fatal("not parked")
		}
	}
	// From here on a is not driven: its NIC acknowledges, but it sends nothing.
	until(t, "the responder gives it up", func() bool { return b.conn.Err() != nil })
	if err := b.conn.Err(); !errors.Is(err, ErrSilent) {
		t.Errorf("%v; want ErrSilent", err)
	}
	if c, _ := b.Counters(); c.Orphaned != 1 || c.ParkedBytes != 0 || c.Delivered != 0 {
		t.Errorf("%+v", c)
	}
	b.space.Free(0, size)
	until(t, "the buffer is whole again", func() bool {
		c, err := b.Prepare()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.own.Slots == DefaultSlots
	})
}

// The initiator disconnects with data parked and another transfer waiting for a slot: both sides
// notice it at once.
func TestInitiatorDisconnects(t *testing.T) {
	a, b := newPair(t, loopback.Plan{}, Config{Timeout: 2 * time.Millisecond}, Config{Slots: 1})
	b.space.Hold(0, 2*size)
	failed, ctx := make(chan error, 2), within(t)
	for k := range 2 {
		go func() { failed <- a.conn.Write(ctx, a.mr, k*size, size, uint64(k*size)) }()
	}
	until(t, "one is parked, one waits",
		func() bool {
			return b.conn.Counters().ParkedBytes == size &&
				a.conn.Counters().BufferFull == 1
		})
	if err := a.conn.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-failed; !errors.Is(err, ErrTransfer) || !errors.Is(err, ErrClosed) {
			t.Errorf("%v; want ErrTransfer, ErrClosed", err)
		}
	}
	until(t, "the responder knows", func() bool { return b.conn.Err() != nil })
	if err := b.conn.Err(); !errors.Is(err, ErrLost) {
		t.Errorf("%v; want ErrLost", err)
	}
	if c, _ := b.Counters(); c.Orphaned != 1 || c.ParkedBytes != 0 {
		t.Errorf("%+v", c)
	}
	if err := a.conn.Post(&Transfer{MR: a.mr, Len: 8}); !errors.Is(err, ErrClosed) {
		t.Errorf("%v; want ErrClosed", err)
	}
}

// A READ goes directly, may be refused repeatedly, and needs no buffer. If the answers are lost the
// responder sends without confirmation.
func TestRead(t *testing.T) {
	ca := Config{Timeout: 5 * time.Millisecond, IndirectBuffer: -1}
	cb := ca
	cb.Faults = Faults{Seed: 1, FailedRegistration: 0.5}
	a, b := newPair(t, loopback.Plan{}, ca, cb)
	read := func(seed uint64) {
		t.Helper()
		want := fill(b.mr.Bytes()[size:][:size], seed)
		if err := a.conn.Read(within(t), a.mr, 0, size, size); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.mr.Bytes()[:size], want) {
			t.Fatal("data differs")
		}
	}
	for k := range uint64(8) {
		read(k)
	}
	if c := b.conn.Counters(); c.ReadDirect+c.ReadIndirect != 8 || c.ReadDirect == 0 {
		t.Errorf("%+v", c)
	}
	a.link.SetFilter(0, 1, func(f []byte) loopback.Action {
		const bthAt, udPayload = 14 + 20 + 8, 14 + 20 + 8 + 12 + 8
		if len(f) > udPayload+5 && f[bthAt] == 0x64 && f[udPayload+4] == 3 { // a confirmation
			return loopback.Drop
		}
		return loopback.Pass
	})
	before := b.conn.Counters().ReadIndirect
	read(100)
	if c := b.conn.Counters(); c.ReadIndirect != before+1 {
		t.Errorf("%+v", c)
	}
}

// Both sides start transfers at once, on a lossy link, with failing registrations. Everything
// arrives.
func TestLossAndFailedRegistrations(t *testing.T) {
	// Enough for some registrations to fail on either side in any interleaving.
	const rounds = 40
	c := Config{Timeout: 2 * time.Millisecond, Slots: 2,
		Faults: Faults{Seed: 9, FailedRegistration: 0.3}}
	a, b := newPair(t, loopback.Plan{Loss: 0.05, Duplicate: 0.05, Reorder: 0.05}, c, c)
	serve(t, a)
	done, ctx := make(chan error, 2), within(t)
	for i, e := range []*end{a, b} {
		other := []*end{b, a}[i]
		go func() {
			for k := range rounds {
				// Sources in the lower half, destinations in the upper.
				off := (k % 8) * size
				want := fill(e.mr.Bytes()[off:off+size], uint64(i*1000+k))
				if err := e.conn.Write(ctx, e.mr, off, size, uint64(rigMem/2+off)); err != nil {
					done <- err
					return
				}
				if !bytes.Equal(other.mr.Bytes()[rigMem/2+off:][:size], want) {
					done <- errors.New("data differs")
					return
				}
			}
			done <- nil
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	ca, cb := a.conn.Counters(), b.conn.Counters()
	if ca.Indirect == 0 || cb.Indirect == 0 || ca.Violations+cb.Violations != 0 {
		t.Errorf("%+v\n%+v", ca, cb)
	}
}

// Invalid arguments are refused with advice.
func TestErrors(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dev := newDevice(t, link, 0)
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg  Config
		want error
	}{
		{Config{IndirectBuffer: 64 << 10}, ErrIndirectBuffer},
		{Config{Entries: 3}, ErrConfig},
		{Config{Entries: 512}, ErrConfig},
		{Config{Slots: 257}, ErrConfig},
		{Config{Segment: -1}, ErrConfig},
		{Config{MaxTransfer: 2 << 30}, ErrConfig},
		{Config{Timeout: -1}, ErrConfig},
		{Config{Faults: Faults{FailedRegistration: 1.5}}, ErrConfig},
	} {
		if _, err := New(dev, pd, c.cfg); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v; want %v", c.cfg, err, c.want)
		}
	}
	a, b := newPair(t, loopback.Plan{}, Config{Entries: 2}, Config{Entries: 2, MaxTransfer: 4096})
	for _, c := range []struct {
		x    Transfer
		want error
	}{
		{Transfer{MR: a.mr, Len: 4097}, ErrTooLarge},
		{Transfer{MR: a.mr}, ErrLength},
		{Transfer{MR: a.mr, Off: rigMem - 1, Len: 2}, ErrMemory},
		{Transfer{Len: 2}, ErrMemory},
		{Transfer{MR: b.mr, Len: 2}, ErrMemory}, // would end the connection
	} {
		if err := a.conn.Post(&c.x); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v; want %v", c.x, err, c.want)
		}
	}
	for k := range 3 {
		if err := a.conn.Post(&Transfer{MR: a.mr, Len: 8}); (k < 2) != (err == nil) ||
			(k == 2 && !errors.Is(err, ErrFull)) {
			t.Errorf("transfer %d: %v", k, err)
		}
	}
}

// Peers with another protocol or configuration are rejected with the reason.
func TestMismatch(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	refused, ctx := make(chan error, 1), within(t)
	a, b := newEnd(t, newDevice(t, link, 0), Config{Segment: 4096}), newEnd(t,
		newDevice(t, link, 1),
		Config{Refused: func(_ netip.AddrPort, err error) { refused <- err }})
	l, err := b.Listen(netip.MustParseAddrPort("10.77.0.2:7001"))
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept(ctx)
		accepted <- err
	}()
	if _, err := a.Dial(ctx, l.Addr()); !errors.Is(err, roce.ErrRefused) {
		t.Errorf("Dial: %v; want ErrRefused", err)
	}
	if err := <-refused; !errors.Is(err, ErrMismatch) {
		t.Errorf("Refused got %v; want ErrMismatch", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepted; !errors.Is(err, roce.ErrClosed) {
		t.Errorf("Accept: %v; want that of Close", err)
	}
	var p Params
	for _, bad := range [][]byte{nil, make([]byte, 56), (&Params{}).append(nil)[:39]} {
		if err := p.parse(bad); !errors.Is(err, ErrPeer) {
			t.Errorf("%d bytes: %v; want ErrPeer", len(bad), err)
		}
	}
}

// Datagrams from strangers and invalid datagrams of peers are counted and dropped. Transfers
// continue.
func TestInvalidDatagrams(t *testing.T) {
	a, b := newPair(t, loopback.Plan{}, Config{}, Config{})
	say := func(msg []byte) {
		if err := a.ud.PostSend(roce.SendWR{Op: roce.OpSend, Inline: msg, AH: a.conn.ah,
			RemoteQPN: b.conn.own.QPN, RemoteQKey: b.conn.own.QKey}); err != nil {
			t.Fatal(err)
		}
	}
	var msg [core.MessageLen]byte
	say([]byte("hello"))
	say(msg[:])
	binary.BigEndian.PutUint32(msg[0:], 0x47445231)
	binary.BigEndian.PutUint32(msg[8:], b.conn.own.Token^1<<20)
	say(msg[:]) // for an unknown connection
	binary.BigEndian.PutUint32(msg[8:], b.conn.own.Token)
	msg[4] = 99
	say(msg[:]) // of an unknown type
	msg[4] = 2
	say(msg[:]) // an answer without a request
	until(t, "all are counted", func() bool {
		c, strange := b.Counters()
		return strange == 3 && c.Malformed == 1 && c.Stale == 1
	})
	write(t, a, b, 0, size, 0, 6)
}

package statusbyte

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// rogue performs the handshake and then writes what it likes.
type rogue struct {
	t    *testing.T
	e    *endpoint.Endpoint
	m    memory
	conn *roce.Conn
}

func newRogue(t *testing.T, cfg Config) (*rogue, *Receiver) {
	t.Helper()
	a, b := devices(t, loopback.Config{})
	l := listen(t, b, cfg)
	ctx := within(t)
	var r *Receiver
	accepted := make(chan error, 1)
	go func() {
		var err error
		r, err = l.Accept(ctx)
		accepted <- err
	}()
	e, err := blocks.NewEndpoint(a, blocks.Depths{Send: 16, SendCQ: 16, Recv: 1, Inline: 64})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := a.Dial(ctx, l.Addr(), e.QP,
		roce.DialOptions{PrivateData: protocol.Put(nil, blocks.Sizes{})})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	m, err := parseMemory(conn.PrivateData())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = conn.Close(), e.Close(), r.Close() })
	return &rogue{t: t, e: e, m: m, conn: conn}, r
}

// write writes anywhere in the receiver's memory and waits for the completion.
func (g *rogue) write(addr uint64, key roce.RKey, b []byte) {
	g.t.Helper()
	if err := g.e.QP.PostSend(roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled, Inline: b,
		RemoteAddr: addr, RKey: key}); err != nil {
		g.t.Fatal(err)
	}
	var wcs [1]roce.WC
	if _, err := g.e.CQ.Wait(within(g.t), wcs[:]); err != nil || wcs[0].Status != roce.Success {
		g.t.Fatal(err, wcs[0].Status)
	}
}

func (g *rogue) status(slot int, v byte) {
	g.t.Helper()
	g.write(g.m.status+uint64(slot), g.m.statKey, []byte{v})
}

// packet writes a block with one byte of data, its number and its status.
func (g *rogue) packet(slot int, device uint8, number uint16) {
	g.t.Helper()
	b := make([]byte, HeaderLen+1)
	h := header{device: device, packet: number, length: 1}
	h.put(b)
	b[HeaderLen] = byte(number)
	g.write(g.m.data+uint64(slot*g.m.stride), g.m.dataKey, b)
	g.status(slot, HasData)
}

// expect receives one packet.
func expect(t *testing.T, r *Receiver, device uint8, number uint16) {
	t.Helper()
	b, err := r.Receive(within(t))
	if err != nil || b.Device != device || b.Packet != number || b.Data[0] != byte(number) {
		t.Fatalf("device %d, packet %d, %v; want %d, %d", b.Device, b.Packet, err, device, number)
	}
	b.Release()
}

func nothing(t *testing.T, r *Receiver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if b, err := r.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("device %d, packet %d, %v; want nothing", b.Device, b.Packet, err)
	}
}

// Status values other than 0 to 2 are counted, the block is empty again, and the stream continues.
func TestInvalidStatus(t *testing.T) {
	g, r := newRogue(t, Config{Blocks: 10, BlockSize: 100})
	for slot, v := range map[int]byte{0: 3, 1: 255, 9: Unavailable} {
		g.status(slot, v)
	}
	g.packet(4, 1, 0)
	expect(t, r, 1, 0)
	if st := r.Stats(); st.BadStatus != 3 {
		t.Errorf("%+v", st)
	}
	g.packet(9, 1, 1)
	expect(t, r, 1, 1)
}

// Gaps in the packet numbers are counted, earlier packets are not handed over again, and numbers
// wrap around.
func TestPacketNumberGaps(t *testing.T) {
	g, r := newRogue(t, Config{Blocks: 4, BlockSize: 100})
	for _, n := range []uint16{0, 5, 5, 4, 6} {
		g.packet(0, 7, n)
		if n == 4 || (n == 5 && r.Device(7).Packets == 2) {
			nothing(t, r)
			continue
		}
		expect(t, r, 7, n)
	}
	if st := r.Device(7); st != (DeviceStats{Packets: 3, Bytes: 3, Gaps: 4, Duplicates: 2}) {
		t.Errorf("%+v", st)
	}
	for _, n := range []uint16{30000, 60000, 65535, 0, 1} {
		g.packet(1, 7, n)
		expect(t, r, 7, n)
	}
	if st := r.Device(7); st.Duplicates != 2 || st.Gaps != 4+65535-6-3 {
		t.Errorf("after wrapping: %+v", st)
	}
}

// Blocks lie in the array in any order. They are handed over by number, separately for each device,
// and a packet that is there is not a gap.
func TestDeliveryOrder(t *testing.T) {
	g, r := newRogue(t, Config{Blocks: 8, BlockSize: 100})
	for i, slot := range []int{6, 2, 7, 0} {
		g.packet(slot, 3, uint16(i))
	}
	g.packet(1, 2, 0)
	expect(t, r, 2, 0)
	for i := range uint16(4) {
		expect(t, r, 3, i)
	}
	if st := r.Device(3); st.Gaps+st.Duplicates != 0 {
		t.Errorf("%+v", st)
	}
}

// Packets with unregistered device numbers are counted, and other devices continue. The same holds
// for impossible lengths.
func TestUnknownDevice(t *testing.T) {
	g, r := newRogue(t, Config{Blocks: 3, BlockSize: 100, Devices: []uint8{1, 2}})
	g.packet(0, 9, 0)
	bad := make([]byte, HeaderLen)
	bad[0] = 1
	binary.BigEndian.PutUint32(bad[4:], 101)
	g.write(g.m.data+uint64(g.m.stride), g.m.dataKey, bad)
	g.status(1, HasData)
	g.packet(2, 1, 0)
	expect(t, r, 1, 0)
	if st := r.Stats(); st.Unknown != 1 || st.BadHeader != 1 {
		t.Errorf("%+v", st)
	}
	for slot := range 3 {
		if v := r.status.Load8(slot); v != Empty {
			t.Errorf("block %d has status %d", slot, v)
		}
	}
}

// A peer that writes to a block held by the program is detected. The block is empty afterwards.
func TestOverwrite(t *testing.T) {
	g, r := newRogue(t, Config{Blocks: 2, BlockSize: 100})
	g.packet(0, 1, 0)
	b, err := r.Receive(within(t))
	if err != nil {
		t.Fatal(err)
	}
	b.Retain()
	g.status(0, HasData)
	nothing(t, r)
	b.Release()
	b.Release() // no effect
	if st := r.Stats(); st.Overwrites != 1 {
		t.Errorf("%+v", st)
	}
}

// A released block may be in use again. Releasing or retaining the old Block does not affect the
// new one.
func TestStaleBlock(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	cfg := Config{Blocks: 1, BlockSize: 100}
	s, r := pair(t, a, b, cfg, cfg)
	ctx := within(t)
	var before Block
	for n := range 3 {
		if err := s.Write(ctx, 0, []byte{byte(n)}); err != nil {
			t.Fatal(err)
		}
		blk, err := r.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			before.Retain()
			before.Release()
			if v := r.status.Load8(0); v != HasData {
				t.Errorf("packet %d: the status byte is %d", n, v)
			}
		}
		blk.Release()
		before = blk
	}
}

// The sender's death ends the stream after everything that arrived before.
func TestEndAfterData(t *testing.T) {
	g, r := newRogue(t, Config{Blocks: 2, BlockSize: 100})
	g.packet(0, 1, 0)
	_ = g.conn.Close()
	expect(t, r, 1, 0)
	if _, err := r.Receive(within(t)); err != io.EOF {
		t.Errorf("%v, want io.EOF", err)
	}
}

// A retained block is skipped: the others carry the stream, and it returns later.
func TestRetain(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	cfg := Config{Blocks: 3, BlockSize: 100}
	s, r := pair(t, a, b, cfg, cfg)
	ctx := within(t)
	var kept Block
	for n := range 100 {
		if err := s.Write(ctx, 0, []byte{byte(n)}); err != nil {
			t.Fatal(err)
		}
		blk, err := r.Receive(ctx)
		if err != nil || int(blk.Packet) != n {
			t.Fatal(blk.Packet, err)
		}
		switch n {
		case 2:
			kept = blk
			kept.Retain()
		case 50:
			if kept.Data[0] != 2 {
				t.Errorf("the retained block was overwritten by packet %d", kept.Data[0])
			}
			kept.Release()
			blk.Release()
		default:
			blk.Release()
		}
	}
	if n, err := s.Free(ctx); n != 3 || err != nil {
		t.Errorf("%d blocks are empty, %v", n, err)
	}
}

// While all blocks are kept a Write waits. It can be canceled, and the packet has not been sent
// then.
func TestCancelWrite(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	cfg := Config{Blocks: 1, BlockSize: 100}
	s, r := pair(t, a, b, cfg, cfg)
	ctx := within(t)
	if err := s.Write(ctx, 0, []byte{0}); err != nil {
		t.Fatal(err)
	}
	kept, err := r.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if err := s.Write(short, 0, []byte{1}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
	kept.Release()
	if err := s.Write(ctx, 0, []byte{1}); err != nil {
		t.Fatal(err)
	}
	expect(t, r, 0, 1)
}

// Close ends calls of other goroutines that wait without a limit: a Write that finds no empty
// receive block, and Fills that find no empty send block.
func TestCloseEndsWaiting(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	cfg := Config{Blocks: 2, BlockSize: 100}
	s, r := pair(t, a, b, cfg, cfg)
	s.linger = 50 * time.Millisecond
	ctx := within(t)
	for range 2 {
		if err := s.Write(ctx, 0, []byte{1}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Receive(ctx); err != nil { // and never release it
			t.Fatal(err)
		}
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	held, err := s.Fill(ctx, 1) // one send block is held, the Write has the other
	if err != nil {
		t.Fatal(err)
	}
	calls := make(chan error, 4)
	go func() { calls <- s.Write(context.Background(), 0, []byte{2}) }()
	for waits := false; !waits; { // it holds turn for longer than a call that does not wait
		short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
		if waits = s.lock(short) != nil; !waits {
			s.release()
		}
		cancel()
	}
	if ctx.Err() != nil {
		t.Fatal("Write does not wait")
	}
	for range 2 {
		go func() {
			_, err := s.Fill(context.Background(), 2)
			calls <- err
		}()
	}
	if err := s.Close(); !errors.Is(err, ErrBroken) {
		t.Errorf("Close: %v", err)
	}
	held.Drop()
	for range 3 {
		select {
		case err := <-calls:
			if !errors.Is(err, ErrBroken) && !errors.Is(err, ErrClosed) {
				t.Errorf("%v", err)
			}
		case <-ctx.Done():
			t.Fatal("a call still waits after Close")
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

// If the sizes of the two sides differ, both get one clear error, nothing is sent, and the listener
// continues.
func TestMismatch(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	_, _, errS, errR := try(t, a, b, Config{Blocks: 4, BlockSize: 100},
		Config{Blocks: 3, BlockSize: 100})
	if !errors.Is(errS, ErrMismatch) || !errors.Is(errR, ErrMismatch) {
		t.Errorf("sender: %v; receiver: %v", errS, errR)
	}
}

// Block sizes or counts that are out of range are errors.
func TestBadConfig(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	for _, c := range []Config{
		{Blocks: -1}, {Blocks: MaxBlocks + 1}, {BlockSize: -1}, {BlockSize: MaxBlockSize + 1},
		{Blocks: MaxBlocks, BlockSize: MaxBlockSize},
		{SendDepth: -1}, {CQDepth: maxDepth + 1}, {Idle: -1}, {Idle: MaxPause + 1},
		{Spin: MaxPause + 1},
	} {
		if _, err := Listen(b, testAddr(b), c); !errors.Is(err, ErrConfig) {
			t.Errorf("Listen with %+v: %v", c, err)
		}
		if _, err := Init(within(t), a, testAddr(b), c); !errors.Is(err, ErrConfig) {
			t.Errorf("Init with %+v: %v", c, err)
		}
	}
	cfg := Config{Blocks: 2, BlockSize: 10}
	s, _ := pair(t, a, b, cfg, cfg)
	if err := s.Write(within(t), 0, make([]byte, 11)); !errors.Is(err, ErrTooLong) {
		t.Errorf("%v", err)
	}
}

// A receiver that disappears is an error of the sender with the reason.
func TestReceiverDisappears(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	cfg := Config{Blocks: 2, BlockSize: 10}
	s, r := pair(t, a, b, cfg, cfg)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	var err error
	for err == nil {
		err = s.Write(ctx, 0, []byte{1})
	}
	if !errors.Is(err, ErrBroken) {
		t.Errorf("%v", err)
	}
}

// Invalid status bytes of a receiver: such blocks are counted and not used. A Write that finds no
// other block can be canceled.
func TestInvalidReceiverStatus(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	cfg := Config{Blocks: 2, BlockSize: 10}
	s, r := pair(t, a, b, cfg, cfg)
	ctx := within(t)
	r.mu.Lock() // its own scan of the array would repair it
	r.status.Store8(0, 9)
	r.status.Store8(1, 9)
	if n, err := s.Free(ctx); n != 0 || err != nil {
		t.Errorf("%d blocks are empty, %v", n, err)
	}
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if err := s.Write(short, 0, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if st := s.Stats(); st.BadStatus < 2 || st.Packets != 0 {
		t.Errorf("%+v", st)
	}
	r.status.Store8(1, Empty)
	if err := s.Write(ctx, 0, nil); err != nil {
		t.Error(err)
	}
	r.mu.Unlock()
}

// Private data that is not a valid hello is an error.
func TestHello(t *testing.T) {
	m := memory{Sizes: blocks.Sizes{Blocks: 3, Size: 1000}, stride: stride(1000), data: 1 << 40,
		status: 2, dataKey: 3, statKey: 4}
	good := m.put(nil)
	if got, err := parseMemory(append(good, make([]byte, 100)...)); err != nil || got != m {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range replyLen {
		if _, err := parseMemory(good[:n]); !errors.Is(err, ErrPeer) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	// Magic, version, blocks, size, stride.
	for at, v := range map[int]byte{0: 'X', 4: 2, 6: 0xff, 8: 0xff, 14: 0} {
		bad := append([]byte(nil), good...)
		bad[at] = v
		if _, err := parseMemory(bad); !errors.Is(err, ErrPeer) {
			t.Errorf("byte %d as %#x: %v", at, v, err)
		}
	}
}

// Many blocks in the reverse order of their numbers are found about as fast as in order: the work
// does not grow with the square of their number.
func TestReverseOrder(t *testing.T) {
	_, r := newRogue(t, Config{Blocks: MaxBlocks, BlockSize: 1})
	least := func(number func(slot int) uint16) time.Duration {
		best := time.Hour
		for range 5 {
			r.mu.Lock()
			r.flows[1] = flow{}
			for slot := range MaxBlocks {
				h := header{device: 1, packet: number(slot), length: 1}
				h.put(r.data.Bytes()[slot*stride(1):])
				r.slots[slot] = slotIdle
				r.status.Store8(slot, HasData)
			}
			begin := time.Now()
			r.gather()
			best = min(best, time.Since(begin))
			if st := r.flows[1].stats; len(r.ready) != MaxBlocks || st.Gaps+st.Duplicates > 0 {
				t.Errorf("%d packets, %+v", len(r.ready), st)
			}
			for i := range r.ready {
				if r.ready[i].seq != uint64(i) {
					t.Errorf("packet %d at index %d", r.ready[i].seq, i)
					break
				}
			}
			r.ready = r.ready[:0]
			r.mu.Unlock()
		}
		return best
	}
	forward := least(func(slot int) uint16 { return uint16(slot) })
	reverse := least(func(slot int) uint16 { return uint16(MaxBlocks - 1 - slot) })
	if reverse > 10*forward+time.Millisecond {
		t.Errorf("%v in reverse order, %v in order", reverse, forward)
	}
	t.Logf("%v in reverse order, %v in order", reverse, forward)
}

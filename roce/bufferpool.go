package roce

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
)

// ErrBuffersInUse: a BufferPool cannot be closed before its buffers were released.
var ErrBuffersInUse = fmt.Errorf("%w: release all buffers of the pool", ErrInUse)

// BufferPool is a fixed number of buffers of one size in one memory region, so that they are
// registered only once. Its methods are safe for concurrent use. In steady state they do not
// allocate.
type BufferPool struct {
	mr   *MR
	size int
	wake chan struct{} // capacity 1: a buffer was released, or the pool was closed

	mu     sync.Mutex
	free   []uint32 // stack of indices
	gens   []uint32 // of each buffer: odd while it is in use
	closed bool
}

// Buffer is a buffer of a BufferPool. It is a small value, which may be copied. After Release it
// must not be used any more.
type Buffer struct {
	pool  *BufferPool
	index uint32
	gen   uint32
}

// NewBufferPool allocates count buffers of size bytes each, and registers them as one memory region
// with the given access rights. Each buffer starts at a multiple of 64 bytes.
//
// Errors: those of AllocMR.
func (p *PD) NewBufferPool(size, count int, access Access) (*BufferPool, error) {
	if size <= 0 || count <= 0 || count > math.MaxInt32 || size > math.MaxInt/count-cacheLine {
		return nil, fmt.Errorf("%w: a pool of %d buffers of %d bytes", ErrInvalid, count, size)
	}
	stride := (size + cacheLine - 1) &^ (cacheLine - 1)
	m, err := p.AllocMR(stride*count, access)
	if err != nil {
		return nil, err
	}
	b := &BufferPool{mr: m, size: size, wake: make(chan struct{}, 1),
		free: make([]uint32, count), gens: make([]uint32, count)}
	for i := range b.free {
		b.free[i] = uint32(count - 1 - i)
	}
	p.dev.ctl.Lock()
	defer p.dev.ctl.Unlock()
	if m.closed { // the device was closed meanwhile
		return nil, ErrClosed
	}
	m.pool = b
	return b, nil
}

const cacheLine = 64

// MR returns the memory region of the buffers.
func (p *BufferPool) MR() *MR { return p.mr }

// Size returns the size of a buffer in bytes.
func (p *BufferPool) Size() int { return p.size }

// Cap returns the number of buffers of the pool.
func (p *BufferPool) Cap() int { return len(p.gens) }

// InUse returns the number of buffers that are not released.
func (p *BufferPool) InUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.gens) - len(p.free)
}

// TryGet returns a free buffer; false if there is none or the pool is closed. The content of the
// buffer is not defined.
func (p *BufferPool) TryGet() (Buffer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free)
	if n == 0 || p.closed {
		return Buffer{}, false
	}
	i := p.free[n-1]
	p.free = p.free[:n-1]
	p.gens[i]++
	if n > 1 {
		p.signal() // another caller of Get
	}
	return Buffer{p, i, p.gens[i]}, true
}

// Get returns a free buffer. It waits for one until ctx is done. With Manual progress it runs the
// protocol while it waits.
//
// Errors: ctx's error, ErrClosed, that of Device.Err; ErrVirtualTime on a device with Expert.Clock
// and without Expert.Wait.
func (p *BufferPool) Get(ctx context.Context) (Buffer, error) {
	for {
		if b, ok := p.TryGet(); ok {
			return b, nil
		}
		if p.isClosed() {
			return Buffer{}, fmt.Errorf("%w: the buffer pool", ErrClosed)
		}
		d := p.mr.pd.dev
		if err := d.Err(); err != nil {
			return Buffer{}, err
		}
		if err := d.await(ctx, "a free buffer", p.wake, p.available); err != nil {
			if p.available() {
				p.signal() // this caller may have consumed the signal for another
			}
			return Buffer{}, err
		}
	}
}

func (p *BufferPool) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.signal() // the next caller of Get
	}
	return p.closed
}

func (p *BufferPool) available() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free) > 0 || p.closed
}

// signal wakes a caller of Get. With Manual progress one of them may run the protocol, and then
// sleeps in the port.
func (p *BufferPool) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
	if d := p.mr.pd.dev; d.manual {
		d.loop.Wake()
	}
}

// Buffer returns the buffer in use with the given ID, for example the WC.ID of a work request whose
// ID was Buffer.ID; false if that buffer was released.
func (p *BufferPool) Buffer(id uint64) (Buffer, bool) {
	b := Buffer{p, uint32(id), uint32(id >> 32)}
	p.mu.Lock()
	defer p.mu.Unlock()
	return b, uint64(b.index) < uint64(len(p.gens)) && b.inUse()
}

// Close deregisters the memory. It returns ErrBuffersInUse while buffers are not released, which
// includes those of receives that SRQ.Close has discarded. Callers of Get return with ErrClosed.
// Closing twice is harmless.
func (p *BufferPool) Close() error {
	p.mu.Lock()
	if n := len(p.gens) - len(p.free); n > 0 && !p.closed {
		p.mu.Unlock()
		return fmt.Errorf("%w: %d of %d are in use", ErrBuffersInUse, n, len(p.gens))
	}
	p.closed = true
	p.signal()
	p.mu.Unlock()
	return p.mr.Close()
}

// shut ends the pool because its region is closed: by Close, with its PD or alone.
func (p *BufferPool) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.signal()
}

// inUse reports whether b was not released. The caller holds mu.
func (b Buffer) inUse() bool { return b.gen&1 == 1 && b.pool.gens[b.index] == b.gen }

// Bytes returns the memory of the buffer.
func (b Buffer) Bytes() []byte {
	at := b.offset()
	return b.pool.mr.Bytes()[at : at+b.pool.size : at+b.pool.size]
}

// SGE returns an SGE for n bytes of the buffer from offset at. It panics if they are not within the
// buffer.
func (b Buffer) SGE(at, n int) SGE {
	if at < 0 || n < 0 || n > b.pool.size-at {
		panic(fmt.Sprintf("roce: %d bytes at %d of a buffer of %d bytes", n, at, b.pool.size))
	}
	return b.pool.mr.SGE(b.offset()+at, n)
}

// ID returns a number that identifies this use of the buffer: see BufferPool.Buffer.
func (b Buffer) ID() uint64 { return uint64(b.gen)<<32 | uint64(b.index) }

// Release returns the buffer to its pool. The Device must not use it any more: release a buffer
// after its work request has completed. Releasing a buffer twice, or the zero Buffer, is a bug in
// the program and panics.
func (b Buffer) Release() {
	p := b.pool
	if p == nil {
		panic("roce: release of a zero Buffer: get it from a BufferPool")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !b.inUse() {
		panic(errDoubleRelease)
	}
	p.gens[b.index]++
	p.free = append(p.free, b.index)
	p.signal()
}

var errDoubleRelease = errors.New(
	"roce: a buffer was released twice: release it once, after its completion")

func (b Buffer) offset() int {
	return int(b.index) * ((b.pool.size + cacheLine - 1) &^ (cacheLine - 1))
}

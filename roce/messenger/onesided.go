package messenger

import (
	"context"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// Op is a one-sided operation for Conn.Do: a READ, a WRITE or an atomic operation on memory of the
// peer, without the help of its program.
type Op struct {
	// Op is roce.OpRead, OpWrite, OpCmpSwap or OpFetchAdd.
	Op roce.Op
	// Remote is the peer's memory, which MR.Remote returned there; Offset is in bytes from its
	// start.
	Remote roce.RemoteBuffer
	Offset uint64
	// Local is the destination of a READ or the source of a WRITE. The data goes through buffers of
	// the connection.
	Local []byte
	// SGE replaces Local if its Length is not 0: a part of a region in Conn.PD (MR.SGE), without a
	// copy. Other memory ends the connection with roce.ErrInvalidKey. See Conn.Do for contexts that
	// end.
	SGE roce.SGE
	// Value is the new value of OpCmpSwap and the addend of OpFetchAdd. Compare is for OpCmpSwap.
	// The 8 bytes of memory are in the host byte order of the peer.
	Compare, Value uint64
	// Result is set by OpCmpSwap and OpFetchAdd: the value before the operation.
	Result uint64
}

// opSet is a list of operations that a caller waits for.
type opSet struct {
	ops     []Op
	one     [1]Op // storage for a list of one
	pending int   // work requests that are posted and not complete
	sges    bool  // some operations use the caller's memory
	err     error
	q       waitq
}

// Do executes operations and waits until all are complete. They are posted together, so that one
// call with many operations costs little more than their packets. They may execute in any order
// with respect to those of other calls; READs and atomics of a list may be overtaken by WRITEs.
//
// If ctx is done before, Do returns at once. Then it is not known which operations were executed,
// Results are not valid, and the connection never uses Local again. With an SGE the device may
// still use its memory, and nothing but the end of the connection prevents that: Do ends it then,
// and returns when the device does not use the memory any more. If an operation fails on the peer,
// for example with a *roce.StatusError of roce.RemAccessErr, the connection has ended, too, and the
// error wraps roce.ErrConnLost.
//
// Errors: ErrRange, roce.ErrInvalid, ctx's error, that of the connection.
func (c *Conn) Do(ctx context.Context, ops []Op) error {
	s := c.newSet()
	s.ops = ops
	return c.failed("access memory of", c.run(ctx, s))
}

// ReadAt reads len(p) bytes at offset off of the peer's memory. See Do for contexts that end and
// for errors.
func (c *Conn) ReadAt(ctx context.Context, p []byte, remote roce.RemoteBuffer, off uint64) error {
	return c.failed("read memory of",
		c.run(ctx, c.single(Op{Op: roce.OpRead, Local: p, Remote: remote, Offset: off})))
}

// WriteAt writes p at offset off of the peer's memory. It returns when the peer has acknowledged
// the WRITE. See Do for contexts that end and for errors.
func (c *Conn) WriteAt(ctx context.Context, p []byte, remote roce.RemoteBuffer, off uint64) error {
	return c.failed("write memory of",
		c.run(ctx, c.single(Op{Op: roce.OpWrite, Local: p, Remote: remote, Offset: off})))
}

// CompareAndSwap replaces the 8 bytes at offset off of the peer's memory by v if they equal old. It
// returns the value before, which equals old if they were replaced. See Do for contexts that end
// and for errors.
func (c *Conn) CompareAndSwap(ctx context.Context, remote roce.RemoteBuffer, off, old, v uint64) (
	before uint64, err error) {
	return c.atomic(ctx,
		Op{Op: roce.OpCmpSwap, Remote: remote, Offset: off, Compare: old, Value: v})
}

// FetchAdd adds to the 8 bytes at offset off of the peer's memory, and returns the value before.
// See Do for contexts that end and for errors.
func (c *Conn) FetchAdd(ctx context.Context, remote roce.RemoteBuffer, off, add uint64) (
	before uint64, err error) {
	return c.atomic(ctx, Op{Op: roce.OpFetchAdd, Remote: remote, Offset: off, Value: add})
}

func (c *Conn) atomic(ctx context.Context, op Op) (before uint64, err error) {
	s := c.single(op)
	c.mu.Lock()
	err = c.runLocked(ctx, s)
	if err == nil {
		before = s.ops[0].Result
		c.freeSet(s)
	}
	c.unlock()
	return before, c.failed("access memory of", err)
}

// newSet returns an empty set.
func (c *Conn) newSet() *opSet {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.sets); n > 0 {
		s := c.sets[n-1]
		c.sets = c.sets[:n-1]
		return s
	}
	return &opSet{}
}

// single returns a set of one operation.
func (c *Conn) single(op Op) *opSet {
	s := c.newSet()
	s.one[0] = op
	s.ops = s.one[:]
	return s
}

// freeSet makes a set available again that nothing refers to. The caller holds mu.
func (c *Conn) freeSet(s *opSet) {
	*s = opSet{}
	c.sets = append(c.sets, s)
}

func (c *Conn) run(ctx context.Context, s *opSet) error {
	c.mu.Lock()
	err := c.runLocked(ctx, s)
	if err == nil {
		c.freeSet(s)
	}
	c.unlock()
	return err
}

// runLocked posts the operations of s and waits for them. The caller holds mu. After an error the
// set is not used again.
func (c *Conn) runLocked(ctx context.Context, s *opSet) error {
	for i := range s.ops {
		if err := s.ops[i].check(); err != nil {
			return err
		}
		s.sges = s.sges || s.ops[i].SGE.Length > 0
	}
	err := c.postOps(ctx, s)
	s.q.soon = s.pending == 1 && c.tail == c.head+1
	for err == nil && s.pending > 0 {
		err = c.block(ctx, &s.q)
	}
	if err == nil {
		err = s.err
	}
	if err == nil {
		return nil
	}
	if s.err != nil {
		err = s.err // says more than that the connection has ended
	}
	if s.pending > 0 {
		c.abandonSet(s)
	}
	return err
}

// abandonSet makes sure that nothing uses the caller's memory any more.
func (c *Conn) abandonSet(s *opSet) {
	if s.sges {
		_ = c.qp.Cancel() // fails if the QP was closed: then it does not use memory either
		c.fail(roce.ErrConnLost)
		return
	}
	for i := range c.slots {
		if k := &c.slots[i]; k.set == s {
			k.set = nil
		}
	}
}

// check checks an operation.
func (o *Op) check() error {
	n := o.length()
	switch o.Op {
	case roce.OpRead, roce.OpWrite:
	case roce.OpCmpSwap, roce.OpFetchAdd:
		if (o.Remote.Addr+o.Offset)%8 != 0 {
			return fmt.Errorf("%w: an atomic operation at address %#x: choose a multiple of 8",
				ErrRange, o.Remote.Addr+o.Offset)
		}
	default:
		return fmt.Errorf("%w: %v is not a one-sided operation", roce.ErrInvalid, o.Op)
	}
	if n > o.Remote.Len || o.Offset > o.Remote.Len-n {
		return fmt.Errorf("%w: %d bytes at offset %d of %d", ErrRange, n, o.Offset, o.Remote.Len)
	}
	return nil
}

// length returns the bytes of remote memory.
func (o *Op) length() uint64 {
	switch {
	case o.Op == roce.OpCmpSwap || o.Op == roce.OpFetchAdd:
		return 8
	case o.SGE.Length > 0:
		return uint64(o.SGE.Length)
	}
	return uint64(len(o.Local))
}

// postOps queues the work requests of a set.
func (c *Conn) postOps(ctx context.Context, s *opSet) error {
	for i := range s.ops {
		o := &s.ops[i]
		for off := 0; ; {
			if err := c.awaitSlot(ctx); err != nil {
				return err
			}
			if off += c.postPart(s, i, off); uint64(off) >= o.length() {
				break
			}
		}
	}
	return nil
}

// postPart queues the work request for the part of operation i at off, and returns the length of
// the part.
func (c *Conn) postPart(s *opSet, i, off int) int {
	o := &s.ops[i]
	wr, sge, at := c.enqueue()
	wr.Op, wr.RKey, wr.RemoteAddr = o.Op, o.Remote.RKey, o.Remote.Addr+o.Offset+uint64(off)
	wr.SGEs, wr.Inline = sge[:], nil
	buf, pos := c.sendBuffer(at)
	length := 8
	switch {
	case o.Op == roce.OpCmpSwap || o.Op == roce.OpFetchAdd:
		wr.Compare, wr.SwapAdd = o.Compare, o.Value
		sge[0] = c.mr.SGE(pos, 8)
	case o.SGE.Length > 0:
		length = int(o.SGE.Length)
		sge[0] = o.SGE
	default:
		length = min(len(o.Local)-off, len(buf))
		sge[0] = c.mr.SGE(pos, length)
		if o.Op == roce.OpWrite {
			copy(buf, o.Local[off:off+length])
			if length <= maxInline {
				wr.Inline, wr.SGEs = buf[:length], nil
			}
		}
	}
	k := &c.slots[at]
	k.set, k.op, k.off, k.n = s, i, off, length
	s.pending++
	// The last completion is that of the list.
	c.signal(i == len(s.ops)-1 && uint64(off+length) >= o.length())
	return length
}

// opDone handles the completion of a part of an operation. The caller holds mu.
func (c *Conn) opDone(at int, k *slot) {
	switch o := &k.set.ops[k.op]; {
	case o.Op == roce.OpCmpSwap || o.Op == roce.OpFetchAdd:
		_, pos := c.sendBuffer(at)
		o.Result = c.mr.Load64(pos)
	case o.Op == roce.OpRead && o.SGE.Length == 0:
		buf, _ := c.sendBuffer(at)
		copy(o.Local[k.off:k.off+k.n], buf)
	}
	if k.set.pending--; k.set.pending == 0 {
		c.wake(&k.set.q)
	}
}

// lost handles a failed completion, after which the connection ends.
func (c *Conn) lost(wc *roce.WC) {
	if wc.ID&recvID != 0 || wc.ID < c.head || wc.ID >= c.tail || wc.Status == roce.WRFlushErr {
		return
	}
	if s := c.slots[c.slotAfter(c.first, int(wc.ID-c.head))].set; s != nil && s.err == nil {
		s.err = fmt.Errorf("%w: %w", roce.ErrConnLost, &roce.StatusError{Status: wc.Status})
	}
}

// failOps ends all operations: the connection has ended. The caller holds mu.
func (c *Conn) failOps(err error) {
	canceled := false
	for i := range c.slots {
		k := &c.slots[i]
		s := k.set
		if s == nil {
			continue
		}
		if s.sges && !canceled {
			canceled = true
			_ = c.qp.Cancel() // fails if the QP was closed
		}
		if s.err == nil {
			s.err = err
		}
		s.pending, k.set = 0, nil
	}
}

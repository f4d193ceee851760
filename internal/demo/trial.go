package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	pollBatch = 64
	grace     = 2 * time.Millisecond // for what may be lost

	barrierID  = ^uint64(0)
	idQPShift  = 32 // in a receive's ID: the QP; below, the slot
	idSlotMask = 1<<idQPShift - 1
	immMask    = 0x600d_f00d // immediate data is the message's number, masked
)

var (
	errStalled = errors.New("no progress: packets do not get through")
	errWrong   = errors.New("verification failed")
)

// wrong says what did not arrive as it was sent.
func (t *trial) wrong(n int64, format string, args ...any) error {
	return fmt.Errorf("%w: %s, %d bytes, message %d: %s", errWrong, t.st.name, t.size, n, fmt.Sprintf(format, args...))
}

// trial is one operation with one size, while it runs.
type trial struct {
	ctx  context.Context
	r    *rig
	st   *step
	size int
	seed uint64

	lat           *cli.Latency
	batchTime     time.Duration // of the batches
	batched       int64         // messages that arrived in batches
	arrived, lost int64         // in all
	next          int64         // number of the next message
	expected      []byte        // scratch: what message n looks like
	keys          []*roce.MR    // SEND inv: one a message of the round
	word          uint64        // atomics: what B's word has to be
	wcs           [pollBatch]roce.WC
	wrs           []roce.SendWR
	recv          []roce.WC // receives that completed in this round
	sent          int       // sends that completed in this round
	lastAt        time.Time // of the last completion
	first         int64     // number of the round's first message
	lastByte      byte      // of the round's last message, on an unreliable transport
	barrierDone   bool
}

func newTrial(ctx context.Context, r *rig, st *step, size int) *trial {
	t := &trial{
		ctx: ctx, r: r, st: st, size: size, lat: cli.NewLatency(),
		seed: r.seed ^ uint64(size)<<32, expected: make([]byte, size), recv: make([]roce.WC, 0, depth),
	}
	for _, ch := range st.name {
		t.seed = t.seed*31 + uint64(ch)
	}
	return t
}

// messages sends messages, batch at a time, until count have arrived.
func (t *trial) messages(count, batch int) error {
	// Of what is not sent again, some is lost; but not most of it.
	for start, tries := t.arrived, 0; t.arrived-start < int64(count); tries++ {
		if tries > 4*count+100 {
			return fmt.Errorf("%w: %s, %d bytes: %d of %d messages lost", errStalled, t.st.name, t.size, t.lost, t.next)
		}
		k := min(int64(batch), int64(count)-(t.arrived-start))
		if err := t.round(int(k), batch > 1); err != nil {
			return err
		}
	}
	return nil
}

// round sends k messages at once, waits for them and checks them.
func (t *trial) round(k int, batch bool) error {
	if err := t.prepare(k); err != nil {
		return err
	}
	start := time.Now()
	if err := t.post(k); err != nil {
		return err
	}
	if err := t.await(k); err != nil {
		return err
	}
	took := t.lastAt.Sub(start)
	got, err := t.verify(k)
	if err != nil {
		return err
	}
	t.arrived += int64(got)
	t.lost += int64(k - got)
	t.next += int64(k)
	switch {
	case batch:
		t.batchTime += took
		t.batched += int64(got)
	case got == 1:
		t.lat.Record(took)
	}
	return nil
}

// post posts the round's messages as one list.
func (t *trial) post(k int) error {
	t.first, t.sent, t.recv, t.barrierDone = t.next, 0, t.recv[:0], false
	t.lastAt = time.Time{}
	t.wrs = t.wrs[:0]
	for i := range k {
		t.wrs = append(t.wrs, t.wr(i))
	}
	if err := t.r.a.qps[t.st.qp].PostSend(t.wrs...); err != nil {
		return fmt.Errorf("%s: %w", t.st.name, err)
	}
	return nil
}

// wr is the work request of the round's message i.
func (t *trial) wr(i int) roce.SendWR {
	a, b := t.r.a, t.r.b
	n := t.next + int64(i)
	wr := roce.SendWR{ID: uint64(i), Op: t.st.op, Flags: roce.Signaled, Imm: immOf(n)}
	if t.size > 0 {
		from := outArea
		if t.st.op == roce.OpRead || t.st.atomic() {
			from = inArea
		}
		wr.SGEs = []roce.SGE{a.mr.SGE(from+i*stride, t.size)}
	}
	wr.RemoteAddr, wr.RKey = b.mr.Addr()+uint64(t.remote(i)), b.mr.RKey()
	switch t.st.op {
	case roce.OpSendInv:
		wr.InvKey = t.keys[i].RKey()
	case roce.OpCmpSwap, roce.OpFetchAdd:
		wr.Compare, wr.SwapAdd = t.operands(n)
	}
	if t.st.qp == ud {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = t.r.ah, b.qps[ud].QPN(), demoQKey
	}
	return wr
}

// remote is the offset in B's memory that message i of a round is about.
func (t *trial) remote(i int) int {
	switch {
	case t.st.atomic():
		return inArea // one word for all
	case t.st.op == roce.OpRead:
		return outArea + i*stride
	}
	return inArea + i*stride
}

func immOf(n int64) uint32 { return uint32(n) ^ immMask }

// await waits until the round is over: all messages have arrived, or, on an unreliable transport, everything that
// still can has.
func (t *trial) await(k int) error {
	start := time.Now()
	for idle := (idler{}); !t.over(k); {
		if err := t.turn(&idle, t.sent < k); err != nil {
			return err
		}
		if idle.tired && !t.st.reliable() && !t.barrierDone && t.sent == k && time.Since(t.since(start)) > grace {
			if err := t.barrier(); err != nil {
				return err
			}
		}
	}
	return nil
}

// turn polls once, and may sleep if that is in vain: on A's CQ if sends are due, else on B's.
func (t *trial) turn(idle *idler, sending bool) error {
	n, err := t.poll()
	if err != nil {
		return err
	}
	if n > 0 {
		*idle = idler{}
		return nil
	}
	sleep, err := idle.vain(t.ctx)
	switch {
	case errors.Is(err, errStalled):
		return fmt.Errorf("%w: %s, %d bytes", err, t.st.name, t.size)
	case err != nil || !sleep:
		return err
	case sending:
		n, err := doze(t.ctx, t.r.a.cq, t.wcs[:])
		return errors.Join(err, t.sends(n))
	}
	n, err = doze(t.ctx, t.r.b.rcq, t.wcs[:])
	return errors.Join(err, t.receives(n))
}

func (t *trial) since(start time.Time) time.Time {
	if t.lastAt.IsZero() {
		return start
	}
	return t.lastAt
}

// over tells whether the round is.
func (t *trial) over(k int) bool {
	switch {
	case t.sent < k:
		return false
	case t.barrierDone:
		return true
	case t.st.recv:
		return len(t.recv) == k
	case t.st.reliable():
		return true
	}
	return t.landed(k)
}

// landed tells whether the last message of a UC WRITE, which nothing announces, is in B's memory.
func (t *trial) landed(k int) bool {
	end := t.remote(k-1) + t.size - 1
	if t.r.b.mr.Load8(end) != t.lastByte {
		return false
	}
	t.lastAt = time.Now()
	return true
}

// poll drives A, and takes the completions of both.
func (t *trial) poll() (int, error) {
	n := t.r.a.cq.Poll(t.wcs[:])
	if err := t.sends(n); err != nil {
		return n, err
	}
	m := t.r.b.rcq.Poll(t.wcs[:])
	return n + m, t.receives(m)
}

// sends takes note of the first n completions polled, of A's.
func (t *trial) sends(n int) error {
	for i := range t.wcs[:n] {
		if err := t.completed(&t.wcs[i]); err != nil {
			return err
		}
	}
	if n > 0 {
		t.lastAt = time.Now()
	}
	return nil
}

// receives takes note of the first n completions polled, of B's.
func (t *trial) receives(n int) error {
	for i := range t.wcs[:n] {
		if t.wcs[i].Status != roce.Success {
			return session.StatusError(&t.wcs[i])
		}
		t.recv = append(t.recv, t.wcs[i])
	}
	if n > 0 {
		t.lastAt = time.Now()
	}
	return nil
}

// completed takes note of a send's completion. They come once each, and in order.
func (t *trial) completed(wc *roce.WC) error {
	switch {
	case wc.Status != roce.Success:
		return fmt.Errorf("%s: %w", t.st.name, session.StatusError(wc))
	case wc.ID == barrierID:
		t.barrierDone = true
	case wc.ID != uint64(t.sent):
		return t.wrong(t.first+int64(wc.ID), "completed out of order, or twice")
	default:
		t.sent++
	}
	return nil
}

// barrier waits until B has handled every packet that was sent before: the link keeps their order, so a reliable
// message behind them shows it.
func (t *trial) barrier() error {
	err := t.r.a.qps[rc].PostSend(roce.SendWR{ID: barrierID, Op: roce.OpWrite, Flags: roce.Signaled})
	if err != nil {
		return err
	}
	lastAt := t.lastAt
	defer func() { t.lastAt = lastAt }() // the barrier is no part of the message's time
	for idle := (idler{}); !t.barrierDone; {
		if err := t.turn(&idle, true); err != nil {
			return err
		}
	}
	_, err = t.poll() // what arrived before the barrier has completed by now
	return err
}

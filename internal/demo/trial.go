package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

const (
	pollBatch = 64
	grace     = 2 * time.Millisecond // to wait for messages that may be lost

	barrierID  = ^uint64(0)
	idQPShift  = 32 // the ID of a receive is the QP index and, below, the slot
	idSlotMask = 1<<idQPShift - 1
	immMask    = 0x600d_f00d // immediate data is the message number XOR this
)

var (
	errStalled = errors.New("no progress: packets do not arrive")
	errWrong   = errors.New("verification failed")
)

// trial runs one operation with one message size. It sends messages in rounds of up to depth.
type trial struct {
	ctx  context.Context
	d    *Demo
	o    *operation
	size int
	seed uint64

	lat           *cli.Latency
	batchTime     time.Duration // of batches
	batched       int64         // messages that arrived in batches
	arrived, lost int64         // messages of all rounds
	next          int64         // number of the next message
	expected      []byte        // scratch space for the content of a message
	keys          []*roce.MR    // SEND inv: a region for each message of the round
	word          uint64        // atomics: expected value of B's word
	wcs           [pollBatch]roce.WC
	wrs           []roce.SendWR

	// State of the round.
	first       int64     // number of the first message
	sent        int       // completions of sends
	recv        []roce.WC // completions of receives
	lastAt      time.Time // of the last completion
	lastByte    byte      // of the last message, on an unreliable transport
	barrierDone bool
}

func newTrial(ctx context.Context, d *Demo, o *operation, size int) *trial {
	t := &trial{
		ctx: ctx, d: d, o: o, size: size, lat: cli.NewLatency(),
		seed: d.Seed ^ uint64(size)<<32, expected: make([]byte, size),
		recv: make([]roce.WC, 0, depth),
	}
	for _, ch := range o.name {
		t.seed = t.seed*31 + uint64(ch)
	}
	return t
}

// wrong returns an error about message n.
func (t *trial) wrong(n int64, format string, args ...any) error {
	return fmt.Errorf("%w: %s, %d bytes, message %d: %s", errWrong, t.o.name, t.size, n,
		fmt.Sprintf(format, args...))
}

// messages sends messages, batch at a time, until count have arrived.
func (t *trial) messages(count, batch int) error {
	// Unreliable messages may be lost, but not most of them.
	for start, tries := t.arrived, 0; t.arrived-start < int64(count); tries++ {
		if tries > 4*count+100 {
			return fmt.Errorf("%w: %s, %d bytes: %d of %d messages lost", errStalled, t.o.name,
				t.size, t.lost, t.next)
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
	took, err := t.exchange(k)
	if err != nil {
		return err
	}
	got, err := t.verify(k)
	if err != nil {
		return err
	}
	t.lost += int64(k - got)
	t.next += int64(k)
	t.record(got, took, batch)
	return nil
}

// record adds messages that arrived in a round to the results.
func (t *trial) record(n int, took time.Duration, batch bool) {
	t.arrived += int64(n)
	switch {
	case batch:
		t.batchTime += took
		t.batched += int64(n)
	case n == 1:
		t.lat.Record(took)
	}
}

// exchange posts k messages as one list, waits until the round is over, and returns the time until
// the last completion.
func (t *trial) exchange(k int) (time.Duration, error) {
	start := time.Now()
	t.first, t.sent, t.recv, t.barrierDone = t.next, 0, t.recv[:0], false
	t.lastAt = time.Time{}
	t.wrs = t.wrs[:0]
	for i := range k {
		t.wrs = append(t.wrs, t.wr(i))
	}
	if err := t.d.a.QPs[t.o.qp].PostSend(t.wrs...); err != nil {
		return 0, fmt.Errorf("%s: %w", t.o.name, err)
	}
	if err := t.wait(k); err != nil {
		return 0, err
	}
	return t.lastAt.Sub(start), nil
}

// wr returns the work request of message i of the round.
func (t *trial) wr(i int) roce.SendWR {
	a, b := t.d.a, t.d.b
	n := t.next + int64(i)
	wr := roce.SendWR{ID: uint64(i), Op: t.o.op, Flags: roce.Signaled, Imm: immOf(n)}
	if t.size > 0 {
		local := outArea
		if t.o.op == roce.OpRead || t.o.atomic() {
			local = inArea
		}
		wr.SGEs = []roce.SGE{a.MR.SGE(local+i*stride, t.size)}
	}
	wr.RemoteAddr, wr.RKey = b.MR.Addr()+uint64(t.remote(i)), b.MR.RKey()
	switch t.o.op {
	case roce.OpSendInv:
		wr.InvKey = t.keys[i].RKey()
	case roce.OpCmpSwap, roce.OpFetchAdd:
		wr.Compare, wr.SwapAdd = t.operands(n)
	}
	if t.o.qp == ud {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = t.d.ah, b.QPs[ud].QPN(), endpoint.QKey
	}
	return wr
}

// remote returns the offset in B's memory for message i of a round.
func (t *trial) remote(i int) int {
	switch {
	case t.o.atomic():
		return inArea // one word for all
	case t.o.op == roce.OpRead:
		return outArea + i*stride
	}
	return inArea + i*stride
}

func immOf(n int64) uint32 { return uint32(n) ^ immMask }

// wait waits until the round is over. On an unreliable transport some messages may be missing then:
// it sends a barrier when no message has arrived for a while.
func (t *trial) wait(k int) error {
	start := time.Now()
	for p := (poller{}); !t.over(k); {
		if err := t.poll(&p, t.sent < k); err != nil {
			return err
		}
		idle := p.slow && t.sent == k && !t.o.reliable() && !t.barrierDone
		if idle && time.Since(t.lastCompletion(start)) > grace {
			if err := t.barrier(); err != nil {
				return err
			}
		}
	}
	return nil
}

// lastCompletion returns the time of the round's last completion, or start if there is none.
func (t *trial) lastCompletion(start time.Time) time.Time {
	if t.lastAt.IsZero() {
		return start
	}
	return t.lastAt
}

// over reports whether the round is over.
func (t *trial) over(k int) bool {
	switch {
	case t.sent < k:
		return false
	case t.barrierDone:
		return true
	case t.o.recv:
		return len(t.recv) == k
	case t.o.reliable():
		return true
	}
	return t.landed(k)
}

// landed reports whether the last UC WRITE of the round, which has no completion at B, is in B's
// memory.
func (t *trial) landed(k int) bool {
	end := t.remote(k-1) + t.size - 1
	if t.d.b.MR.Load8(end) != t.lastByte {
		return false
	}
	t.lastAt = time.Now()
	return true
}

// poll drives A and takes completions of both sides. If there are none it may sleep: on A's CQ if
// sends are outstanding, otherwise on B's.
func (t *trial) poll(p *poller, sending bool) error {
	n, err := t.pollOnce()
	if err != nil {
		return err
	}
	if n > 0 {
		*p = poller{}
		return nil
	}
	sleep, err := p.empty(t.ctx)
	switch {
	case errors.Is(err, errStalled):
		return fmt.Errorf("%w: %s, %d bytes", err, t.o.name, t.size)
	case err != nil || !sleep:
		return err
	case sending:
		n, err := waitBriefly(t.ctx, t.d.a.CQ, t.wcs[:])
		return errors.Join(err, t.takeSends(n))
	}
	n, err = waitBriefly(t.ctx, t.d.b.RecvCQ, t.wcs[:])
	return errors.Join(err, t.takeReceives(n))
}

func (t *trial) pollOnce() (int, error) {
	n := t.d.a.CQ.Poll(t.wcs[:])
	if err := t.takeSends(n); err != nil {
		return n, err
	}
	m := t.d.b.RecvCQ.Poll(t.wcs[:])
	return n + m, t.takeReceives(m)
}

// takeSends records the first n completions in wcs, which are A's.
func (t *trial) takeSends(n int) error {
	for i := range t.wcs[:n] {
		if err := t.takeSend(&t.wcs[i]); err != nil {
			return err
		}
	}
	if n > 0 {
		t.lastAt = time.Now()
	}
	return nil
}

// takeReceives records the first n completions in wcs, which are B's.
func (t *trial) takeReceives(n int) error {
	for i := range t.wcs[:n] {
		if err := endpoint.StatusError(&t.wcs[i]); err != nil {
			return err
		}
		t.recv = append(t.recv, t.wcs[i])
	}
	if n > 0 {
		t.lastAt = time.Now()
	}
	return nil
}

// takeSend records the completion of a send. Each must come once and in order.
func (t *trial) takeSend(wc *roce.WC) error {
	if err := endpoint.StatusError(wc); err != nil {
		return fmt.Errorf("%s: %w", t.o.name, err)
	}
	switch wc.ID {
	case barrierID:
		t.barrierDone = true
	case uint64(t.sent):
		t.sent++
	default:
		return t.wrong(t.first+int64(wc.ID), "completed out of order or twice")
	}
	return nil
}

// barrier waits until B has processed all packets sent so far. The link keeps the order of packets,
// so the completion of a reliable message that follows them shows it.
func (t *trial) barrier() error {
	err := t.d.a.QPs[rc].PostSend(roce.SendWR{ID: barrierID, Op: roce.OpWrite,
		Flags: roce.Signaled})
	if err != nil {
		return err
	}
	lastAt := t.lastAt
	defer func() { t.lastAt = lastAt }() // the barrier does not count
	for p := (poller{}); !t.barrierDone; {
		if err := t.poll(&p, true); err != nil {
			return err
		}
	}
	_, err = t.pollOnce() // everything that arrived before the barrier has completed
	return err
}

package stock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/roce"
)

const (
	// secondMessage is the time to wait for a second message before the server tries whether the
	// client waits for a reply.
	secondMessage = 20 * time.Millisecond
	// firstMessage is the time after which a client that sends nothing waits for the server's first
	// message: it runs write-lat. Up to then, such a client does the same as one that is about to
	// SEND. The time is long because the latter does not permit WRITEs, so a first message, even an
	// empty one, would end its test. It does not matter if the server's user has told the test, nor
	// for SENDs of rxe, which announces no key for memory without remote access.
	firstMessage = 3 * time.Second
	// firstReply is the time in which a write-lat client replies to the first message. A client
	// with larger messages does not see it and waits without a time limit.
	firstReply = 10 * time.Second
	// endTime is the time that a client has to close its connection after its queue pairs.
	endTime = 5 * time.Second
)

// proofID is the ID of the empty WRITE that precedes the first message of write-lat.
const proofID = uint64(1) << 62

var (
	// errImpatient means that too many replies are outstanding. The client of a latency test
	// acknowledges a reply before it sends its next message.
	errImpatient = errors.New("the client does not wait for replies: start both sides with the same test")
	// errTooLarge means that the client's SENDs do not fit into the receives.
	errTooLarge = errors.New("the client sends messages larger than this server's buffers: " +
		"start this server with the client's -s")
)

// pattern describes how the client sends messages.
type pattern uint8

const (
	unknown pattern = iota
	// The server has replied to the first message. Either the client acknowledges the reply, which
	// requires a receive, so it runs a latency test. Or it has no receive and sends a third message
	// (the second one may overtake the acknowledgment), so it runs a bandwidth test. The queue pair
	// of the server then repeats the reply in vain, once per RNR timer, until the test ends.
	trying
	streaming // without replies: bandwidth, or nothing that the server sees
	echoing   // each message waits for its reply
)

// messageHandler handles the messages of one client: it counts them, reposts receives, and replies
// if the client waits for it. It belongs to one goroutine.
type messageHandler struct {
	*serverSession
	spin    perf.Spinner
	pattern pattern
	wcs     [perf.PollBatch]roce.WC
	wr      []roce.SendWR // the reply
	sge     [1]roce.SGE
	sends   int   // replies that have not completed
	reposts []int // per queue pair: receives to be posted again

	// Valid after setReplyQP.
	qp     *roce.QP
	buffer roce.RemoteBuffer
	memory *writeWatcher // nil: not watched, or not anymore

	// For the end of the test.
	firstBytes int   // size of the first message of the test; 0: there was none yet
	barriers   int   // that the client has passed since the last message
	seen       int32 // barriers of serverSession.passed
	lastReply  bool  // the reply to the last message is outstanding

	watching   time.Time // when watching began, or when the server sent its first message
	firstSent  bool      // the server has sent write-lat's first message
	firstsSent bool      // and those of the larger sizes

	// Of the current run.
	bytes   int // per message
	count   int64
	first   time.Time // of the first message
	last    time.Time // of the last message
	replied time.Time
	trips   *cli.Latency
}

func newMessageHandler(v *serverSession) *messageHandler {
	return &messageHandler{
		serverSession: v, spin: perf.NewSpinner(v.s.Dev),
		reposts: make([]int, maxQPs), wr: make([]roce.SendWR, 1), trips: cli.NewLatency(),
	}
}

// run handles messages until the client has ended.
func (h *messageHandler) run(ctx context.Context) error {
	if w := h.server.Want; w != nil {
		switch w.Operation.Reply {
		case perf.ReplyNone:
			h.pattern = streaming
		case perf.ReplySend:
			h.pattern = echoing
		}
	}
	err := h.waitForRun(ctx)
	if err == nil && ctx.Err() == nil {
		err = h.poll(ctx)
	}
	close(h.deaf)
	if err != nil && !isVerdict(err) {
		// A client destroys its queue pairs before it closes its connection.
		select {
		case <-h.ended:
		case <-time.After(endTime):
		}
	}
	if h.done.Load() && !isVerdict(err) {
		// The client has ended, so failed completions are no error.
		err = nil
		_ = h.drain()
	}
	h.endRun()
	if err == nil && ctx.Err() != nil && !h.done.Load() {
		err = context.Cause(ctx)
	}
	return err
}

// isVerdict reports whether err says what the client does wrong, and is not the consequence of its
// end.
func isVerdict(err error) bool {
	return errors.Is(err, errTooLarge) || errors.Is(err, errImpatient) ||
		errors.Is(err, errNoWrite) || errors.Is(err, errNotZeros)
}

// waitForRun handles completions and sleeps between them until a run begins that may need polling,
// or the client ends.
func (h *messageHandler) waitForRun(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := h.waitForBarrier(ctx); err != nil {
			return err
		}
		if err := h.drain(); err != nil {
			return err
		}
		if ctx.Err() == nil {
			h.passBarrier()
		}
		select {
		case <-h.ready:
			return nil
		default:
		}
	}
	return nil
}

// waitForBarrier handles completions and sleeps between them until the client passes a barrier or
// ctx ends.
func (h *messageHandler) waitForBarrier(ctx context.Context) error {
	waiting, cancel := perf.UntilDone(ctx, h.wake)
	defer cancel()
	for waiting.Err() == nil {
		n, err := h.s.CQ.Wait(waiting, h.wcs[:])
		if err != nil && waiting.Err() == nil {
			return err
		}
		if err := h.complete(n); err != nil {
			return err
		}
	}
	return nil
}

// drain handles the completions that are left.
func (h *messageHandler) drain() error {
	for {
		n := h.s.CQ.Poll(h.wcs[:])
		if n == 0 {
			return nil
		}
		if err := h.complete(n); err != nil {
			return err
		}
	}
}

// poll polls completions and memory.
func (h *messageHandler) poll(ctx context.Context) error {
	h.spin.Start()
	defer h.spin.Stop()
	h.setReplyQP()
	h.watching = time.Now()
	if w := h.server.Want; h.memory != nil && w != nil && w.Operation.Reply == perf.ReplyWrite {
		if err := h.sendFirst(); err != nil {
			return err
		}
	}
	for !h.done.Load() && ctx.Err() == nil {
		passed := h.passed.Load() // before the poll, which finds the messages before a barrier
		n := h.s.CQ.Poll(h.wcs[:])
		if err := h.complete(n); err != nil {
			return err
		}
		if h.memory != nil && h.memory.poll() {
			n++
			if err := h.replyToWrite(); err != nil {
				return err
			}
		}
		switch {
		case n > 0:
			h.spin.Found()
		case passed != h.seen:
			<-h.wake
			h.passBarrier()
		case h.spin.Empty():
			if err := h.check(); err != nil {
				return err
			}
		}
	}
	return nil
}

// setReplyQP sets what replies need of the client's only queue pair.
func (h *messageHandler) setReplyQP() {
	if h.qp != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.qp, h.buffer = h.s.QP, h.s.Peer[0].Buffer
	if h.firstBytes == 0 { // not a client that SENDs
		h.memory = h.serverSession.memory
	}
}

// check is called now and then while nothing arrives. It decides what the client waits for.
func (h *messageHandler) check() error {
	if h.pattern == unknown && h.count == 1 &&
		time.Since(h.first) > cmp.Or(h.server.times.second, secondMessage) {
		h.pattern = trying
		return h.replyToSend()
	}
	if h.memory == nil || h.memory.size > 0 {
		return nil
	}
	if err := h.memory.search(); err != nil || h.memory.size > 0 {
		return err
	}
	waited := time.Since(h.watching)
	switch {
	case !h.firstSent && waited > cmp.Or(h.server.times.first, firstMessage):
		return h.sendFirst()
	case h.firstSent && waited > cmp.Or(h.server.times.reply, firstReply):
		return errNoWrite
	}
	return nil
}

func (h *messageHandler) overTime() time.Duration { return cmp.Or(h.server.times.over, overTime) }

// sendFirst sends the first message of write-lat. An empty WRITE precedes it, so that a peer that
// does not answer on the RDMA path receives little.
func (h *messageHandler) sendFirst() error {
	h.firstSent, h.watching = true, time.Now()
	h.sends++
	h.wr[0] = h.write(nil)
	h.wr[0].ID = proofID
	return h.qp.PostSend(h.wr...)
}

// writeFirst writes the first message, for any size up to a page.
func (h *messageHandler) writeFirst() error {
	h.watching = time.Now()
	ones, n := h.s.Out(0)+h.serverSession.bytes, max(pageBytes, h.server.Size)
	for off := range n {
		h.s.MR.Store8(ones+off, 1)
	}
	h.sends++
	h.sge[0] = h.s.MR.SGE(ones, n)
	h.wr[0] = h.write(h.sge[:])
	return h.qp.PostSend(h.wr...)
}

// write returns a signaled WRITE to the client's buffer.
func (h *messageHandler) write(sges []roce.SGE) roce.SendWR {
	return roce.SendWR{
		Op: roce.OpWrite, Flags: roce.Signaled, SGEs: sges, RemoteAddr: h.buffer.Addr,
		RKey: h.buffer.RKey,
	}
}

// sendLargerFirsts sends the first messages for larger sizes, to a client that runs all sizes.
func (h *messageHandler) sendLargerFirsts() error {
	h.firstsSent = true
	one := h.s.MR.SGE(h.s.Out(0)+h.serverSession.bytes, 1)
	var wrs []roce.SendWR
	for n := 2 * max(pageBytes, h.server.Size); n <= h.serverSession.bytes; n *= 2 {
		wrs = append(wrs, roce.SendWR{
			Op: roce.OpWrite, SGEs: []roce.SGE{one}, RemoteAddr: h.buffer.Addr + uint64(n) - 1,
			RKey: h.buffer.RKey,
		})
	}
	return h.qp.PostSend(wrs...)
}

// complete handles the first n polled completions.
func (h *messageHandler) complete(n int) error {
	now := time.Time{}
	for i := range h.wcs[:n] {
		wc := &h.wcs[i]
		qp, recv := perf.ParseRecvID(wc.ID)
		switch {
		case wc.Status == roce.WRFlushErr && (h.done.Load() || h.disconnected.Load()):
			return nil
		case wc.Status == roce.LocLenErr:
			return errTooLarge
		case wc.Status != roce.Success:
			return endpoint.StatusError(wc)
		case !recv:
			if err := h.sent(wc.ID == proofID); err != nil {
				return err
			}
			continue
		}
		if now.IsZero() {
			now = time.Now()
		}
		if err := h.received(qp, int(wc.ByteLen), now); err != nil {
			return err
		}
	}
	return nil
}

// sent handles the acknowledgment of a reply, or of the empty WRITE before the first message.
func (h *messageHandler) sent(proof bool) error {
	h.sends--
	switch {
	case proof:
		return h.writeFirst()
	case h.lastReply && h.sends == 0:
		h.testOver()
	case h.pattern == trying:
		h.pattern = echoing
		if h.count > 1 {
			return h.replyToSend() // the message overtook the acknowledgment
		}
	}
	return nil
}

// received handles a SEND of n bytes on queue pair i.
func (h *messageHandler) received(i, n int, now time.Time) error {
	if n != h.bytes {
		h.endRun() // a test of all sizes has reached the next size
		h.bytes = n
	}
	if h.count == 0 {
		h.first = h.runStart(now)
	}
	h.count++
	h.last = now
	h.firstBytes, h.barriers = cmp.Or(h.firstBytes, n), 0
	h.expect(time.Time{})
	h.memory = nil
	if h.pattern == unknown && h.count > 1 || h.pattern == trying && h.count > 2 {
		h.pattern = streaming
	}
	if h.reposts[i]++; h.reposts[i] >= perf.MaxBatch || h.pattern == echoing {
		h.mu.Lock()
		err := h.postRecvs(i, h.reposts[i])
		h.mu.Unlock()
		if err != nil {
			return err
		}
		h.reposts[i] = 0
	}
	if h.pattern == echoing {
		return h.replyToSend()
	}
	return nil
}

// runStart returns when the run began whose first message has arrived now: at the barrier before
// it, if there was one.
func (h *messageHandler) runStart(now time.Time) time.Time {
	if t := time.Unix(0, h.barrier.Load()); t.After(h.last) && t.Before(now) {
		return t
	}
	return now
}

// replyToSend replies to a SEND with one of the same size.
func (h *messageHandler) replyToSend() error {
	h.wr[0] = roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled, SGEs: h.out(max(1, h.bytes))}
	return h.reply(time.Now())
}

// replyToWrite replies to a WRITE with one like it.
func (h *messageHandler) replyToWrite() error {
	size := h.memory.size
	if size != h.bytes {
		h.endRun()
		h.bytes = size
	}
	h.count++
	if h.memory.more && !h.firstsSent {
		if err := h.sendLargerFirsts(); err != nil {
			return err
		}
	}
	h.firstBytes, h.pattern = cmp.Or(h.firstBytes, size), echoing
	if h.server.Iterations == 0 {
		h.expect(time.Now().Add(h.overTime()))
	}
	h.lastReply = h.lastWrite()
	h.s.MR.Store8(h.s.Out(0)+size-1, h.memory.number+1) // the server is one message ahead
	h.wr[0] = h.write(h.out(size))
	return h.reply(time.Now())
}

func (h *messageHandler) out(n int) []roce.SGE {
	h.sge[0] = h.s.MR.SGE(h.s.Out(0), n)
	return h.sge[:]
}

// reply posts the reply and records the time that the client took since the last one.
func (h *messageHandler) reply(now time.Time) error {
	h.setReplyQP() // the first message may arrive before poll is called
	if h.sends == maxReplies {
		if w := h.server.Want; w == nil && h.memory == nil {
			// The client has receives, but it does not wait for replies.
			h.pattern, h.trips = streaming, cli.NewLatency()
			return nil
		}
		return errImpatient
	}
	if h.count > 1 {
		h.trips.Record(now.Sub(h.replied) / 2)
	}
	h.replied = now
	h.sends++
	return h.qp.PostSend(h.wr...)
}

// endRun reports the result of the current run and resets it.
func (h *messageHandler) endRun() {
	switch {
	case h.count == 0:
		return
	case h.trips.Count() > 0:
		h.finished(h.bytes, h.count, nil, &perf.NewLatencyResult(h.trips).LatencyColumns)
	case !h.first.IsZero():
		// If the server polled so late that it saw all messages at once, the time and the rates are
		// 0.
		r := perf.BandwidthResult{Messages: h.count, Time: h.last.Sub(h.first)}
		c := &perf.BandwidthColumns{
			Average: cli.Round(r.Rate(h.bytes)/perf.MB, 3), MsgRate: cli.Round(r.Rate(1)/1e6, 6),
			Unit: perf.UnitMB,
		}
		c.Peak = c.Average
		h.finished(h.bytes, h.count, c, nil)
	}
	h.count, h.first, h.trips = 0, time.Time{}, cli.NewLatency()
}

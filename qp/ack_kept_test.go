package qp

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// keepTalk is a talk whose owner sleeps, and whose program has answered many messages. next is the
// number of the next message and of the next answer.
func keepTalk(t *testing.T, change ...func(*InitAttr, *Attr)) (k *talk, next int) {
	k = newTalk(t, RC, change...)
	k.KeepAcks(true)
	for ; next < maxReplies; next++ {
		k.exchange(next)
	}
	return k, next
}

// exchange makes the program answer message i at once, and the peer acknowledge the answer.
func (k *talk) exchange(i int) {
	k.t.Helper()
	k.say(k.write(i, seq(8)))
	k.reply(i)
}

func (k *talk) reply(i int) {
	k.t.Helper()
	k.now += 10 * ackSoon
	k.post(k.wr(uint64(i), OpSend, 4))
	k.hears(fmt.Sprintf("SEND Only +%d ask 4B", i), ackOf(i))
	k.say(ack(i))
	k.completes(fmt.Sprintf("%d success SEND 4B", i))
}

func ackOf(i int) string { return fmt.Sprintf("ACK +%d msn=%d", i, i+1) }

// While the program answers messages, their ACKs leave with the answers.
func TestKeptACKLeavesWithReply(t *testing.T) {
	k, next := keepTalk(t)
	k.say(k.write(next, seq(8)))
	want := k.now + ackKept
	k.now += ackKept / 2
	k.hears()
	if k.ReleaseAcks() || !k.Idle() || k.OwesAck() {
		t.Error("the ACK is not kept when the owner sleeps")
	}
	if due, ok := k.KeptAckDue(); !ok || due != want {
		t.Errorf("KeptAckDue() = %v, %v, want %v", due, ok, want)
	}
	k.reply(next)
	if _, ok := k.KeptAckDue(); ok {
		t.Error("an ACK is kept after the answer")
	}
}

// Without an answer, the ACK leaves after ackKept, and that of the next message does not wait.
func TestKeptACKWithoutReply(t *testing.T) {
	k, next := keepTalk(t)
	k.say(k.write(next, seq(8)))
	k.hears()
	due, ok := k.KeptAckDue()
	if !ok {
		t.Fatal("the ACK is not kept")
	}
	k.now = due - 1001
	k.hears()
	k.now = due
	k.hears(ackOf(next))
	k.say(k.write(next+1, seq(8)))
	k.hears(ackOf(next + 1))
}

// No ACK waits for the replies of a program that takes longer than an ACK may wait.
func TestACKNotKeptForLateReplies(t *testing.T) {
	k := newTalk(t, RC)
	k.KeepAcks(true)
	for i := range 2 * maxReplies {
		k.say(k.write(i, seq(8)))
		k.hears(ackOf(i))
		k.now += 2 * ackKept
		k.post(k.wr(uint64(i), OpSend, 4))
		k.hears(fmt.Sprintf("SEND Only +%d ask 4B", i))
		k.say(ack(i))
		k.completes(fmt.Sprintf("%d success SEND 4B", i))
	}
}

// An ACK does not wait if another message comes before the answer, and without KeepAcks.
func TestACKNotKept(t *testing.T) {
	for name, kept := range map[string]bool{"in one step": false, "later": true} {
		k, next := keepTalk(t)
		k.say(k.write(next, seq(8)))
		if kept {
			k.hears()
		}
		if _, ok := k.KeptAckDue(); ok != kept {
			t.Errorf("%s: kept = %v, want %v", name, ok, kept)
		}
		k.say(k.write(next+1, seq(8)))
		k.hears(ackOf(next + 1))
	}

	k, next := keepTalk(t)
	k.KeepAcks(false)
	k.say(k.write(next, seq(8)))
	if !k.ReleaseAcks() {
		t.Error("an ACK is kept after KeepAcks(false)")
	}
	k.hears(ackOf(next))
}

// An ACK does not wait if the QP has a short Local ACK Timeout: its peer's may expire meanwhile.
func TestACKNotKeptWithShortTimeout(t *testing.T) {
	for timeout, kept := range map[uint8]bool{patient - 1: false, patient: true, AckNever: true} {
		k, next := keepTalk(t, func(_ *InitAttr, a *Attr) { a.Timeout = timeout })
		k.say(k.write(next, seq(8)))
		if k.ReleaseAcks() == kept {
			t.Errorf("Timeout %d: kept = %v, want %v", timeout, !kept, kept)
		}
	}
}

// An ACK does not wait while the QP itself waits for one. Two programs that send at the same time,
// and then wait for completions, would otherwise wait for each other.
func TestACKNotKeptWhileWaitingForACK(t *testing.T) {
	k, next := keepTalk(t)
	k.post(k.wr(1, OpSend, 4))
	k.listen()
	k.say(k.write(next, seq(8)))
	k.hears(ackOf(next))
}

// In the middle of a message, a requester whose window is full waits for the ACK, and the program
// cannot reply yet.
func TestACKNotKeptInMiddleOfMessage(t *testing.T) {
	k, next := keepTalk(t)
	k.say(pkt{op: bth.RCWriteFirst, psn: next, va: k.at(0), key: k.rkey(), n: 2 * talkMTU,
		data: seq(talkMTU)})
	if !k.ReleaseAcks() {
		t.Error("the ACK is kept in the middle of a message")
	}
	k.hears(fmt.Sprintf("ACK %+d msn=%d", next, next))
	k.say(pkt{op: bth.RCWriteLast, psn: next + 1, data: seq(talkMTU)})
	k.hears()
	if _, ok := k.KeptAckDue(); !ok {
		t.Error("the ACK is not kept at the end of the message")
	}
}

// The report of a gap does not wait for a reply.
func TestReportOfGapNotKept(t *testing.T) {
	k, next := keepTalk(t, func(_ *InitAttr, a *Attr) { a.Selective = true })
	late := k.write(next+2, seq(8))
	late.noAck = true
	k.say(late)
	k.hears(fmt.Sprintf("NAK PSN sequence error %+d msn=%d held %+d", next, next, next+2))
	k.say(k.read(next, 0, 8)) // the packet after it is still missing
	k.hears(fmt.Sprintf("RDMA READ response Only %+d msn=%d 8B", next, next+1))
	if !k.ReleaseAcks() {
		t.Error("the report is kept")
	}
}

// An ACK that is kept leaves with a CNP, which wakes up both sides anyway.
func TestKeptACKLeavesWithCNP(t *testing.T) {
	k, next := keepTalk(t)
	k.say(k.write(next, seq(8)))
	k.now += ackKept / 2
	k.sayMarked(k.write(next+1, seq(8)))
	k.hears("CNP", ackOf(next+1))
}

// Of the QPs whose programs reply in the same step, only the first sends the reply before the ACK.
func TestRepliesOfTwoQPs(t *testing.T) {
	w := newWorld(t, 1)
	w.ends[1].KeepAcks(true)
	a1, b1 := w.pair(RC)
	a2, b2 := w.pair(RC)
	for range 2 * maxReplies {
		w.post(a1, w.write(0))
		w.post(a2, w.write(0))
		w.idle(50_000)
		w.post(b1, w.write(1))
		w.post(b2, w.write(1))
		w.idle(50_000)
	}
	for i, q := range []*QP{b1, b2} {
		if n := q.rec.replies; n != maxReplies {
			t.Errorf("QP %d: %d replies, want %d", i+1, n, maxReplies)
		}
	}
}

// write returns a signaled WRITE of 8 bytes by end i.
func (w *world) write(i int) SendWR {
	addr, key := w.ends[1-i].remote(0)
	return SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{w.ends[i].sge(0, 8)}, RemoteAddr: addr,
		RKey: key}
}

// Several QPs with random messages, replies, changes of state and class, and KeepAcks that is
// turned on and off: no ACK is kept too long, and in the end every message is acknowledged.
func TestKeptACKsOfManyQPs(t *testing.T) {
	seeds := 100
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { keepMany(t, uint64(seed)) })
	}
}

func keepMany(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	classes := r.IntN(2) == 0
	w := newWorld(t, seed, func(c *Config) {
		if classes {
			c.Classes = randomClasses(r)
		}
	})
	w.faults = faults{loss: 0.02 * float64(r.IntN(2)), reorder: 0.02, late: 20_000}
	mark := r.IntN(2) == 0
	w.arrive = func(to int, p *bth.Packet) bool {
		if mark && r.IntN(8) == 0 {
			p.TrafficClass |= ecnCE
		}
		return true
	}
	var pairs [6][2]*QP
	create := func(i int) {
		a, b := w.pair(RC, func(_ *InitAttr, a *Attr) { a.Selective = r.IntN(2) == 0 })
		pairs[i] = [2]*QP{a, b}
	}
	for i := range pairs {
		create(i)
	}
	write := func(from int, q *QP) {
		if q.State() != RTS || q.SQLen() == 128 {
			return
		}
		addr, key := w.ends[1-from].remote(0)
		n := []int{0, 8, 8, 8, 3000}[r.IntN(5)]
		w.post(q, SendWR{Op: OpWrite, Flags: SendFlags(r.IntN(2)) * Signaled,
			SGEs: []SGE{w.ends[from].sge(4096, n)}, RemoteAddr: addr, RKey: key})
	}
	change := func(q *QP, a *Attr, mask AttrMask) { must(t, q.Modify(w.now, a, mask)) }
	for range 400 {
		i, from := r.IntN(len(pairs)), r.IntN(2)
		p := &pairs[i]
		e, q := w.ends[from], p[from]
		switch r.IntN(12) {
		case 0, 1, 2, 3:
			write(from, q)
		case 4, 5:
			e.changeKeeping(r, q)
		case 6:
			if st := q.State(); st == RTS || st == SQD {
				change(q, &Attr{State: RTS + SQD - st}, AttrState)
			}
		case 7:
			if classes {
				changeClass(t, w.now, r, q)
			}
		case 8:
			e.ReleaseAcks()
		case 9:
			var buf [256]byte
			if tx := e.PollAck(q, buf[:]); tx != nil {
				w.send(from, buf[tx.NetLen:tx.Len])
			}
		case 10:
			if r.IntN(4) > 0 {
				break
			}
			if r.IntN(2) == 0 {
				change(q, &Attr{State: []State{Reset, Err}[r.IntN(2)]}, AttrState)
			}
			w.ends[0].DestroyQP(p[0])
			w.ends[1].DestroyQP(p[1])
			create(i)
		default:
			w.idle(Time(r.Int64N(int64(ackKept))) >> r.IntN(8))
		}
		for _, e := range w.ends {
			must(t, e.checkKept(w.now))
		}
		for _, p := range pairs {
			must(t, p[0].invariants())
			must(t, p[1].invariants())
		}
	}
	for _, p := range pairs {
		for _, q := range p {
			if q.State() == SQD {
				change(q, &Attr{State: RTS}, AttrState)
			}
		}
	}
	w.run(60*second, func() bool {
		for _, p := range pairs {
			if p[0].SQLen() > 0 || p[1].SQLen() > 0 {
				return false
			}
		}
		return true
	})
	for _, e := range w.ends {
		for _, wc := range e.wcs {
			if wc.Status != Success && wc.Status != WRFlushErr {
				t.Errorf("completion %s", wc.short())
			}
		}
		if _, ok := e.KeptAckDue(); ok {
			w.idle(ackKept)
		}
		if _, ok := e.KeptAckDue(); ok {
			t.Error("an ACK is still kept")
		}
	}
}

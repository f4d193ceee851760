package qp

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// backlog makes the QP hold WRITEs of 8 bytes, from PSN 1 to PSN n, and fills the gap. WRITE i
// writes to offset 8*i.
func (k *talk) backlog(n int) {
	k.t.Helper()
	for i := 1; i <= n; i++ {
		if k.say(k.flagTo(i)); i%64 == 0 {
			k.listen()
		}
	}
	k.listen()
	k.say(k.flagTo(0))
}

// flagTo returns the WRITE with the PSN i of a backlog.
func (k *talk) flagTo(i int) pkt {
	p := k.writeTo(i, 8*i, bytes.Repeat([]byte{byte(i%255 + 1)}, 8))
	p.noAck = true
	return p
}

// executed returns the number of packets that the QP has executed.
func (k *talk) executed() int { return int(k.q.epsn - countBase - uint64(k.base)) }

// After a gap is filled, held packets are executed in parts. Other QPs are served in between.
// Packets that arrive meanwhile are held, and executed in order.
func TestFillIsBounded(t *testing.T) {
	k := newSelectiveTalk(t)
	other := &talk{world: k.world, end: k.end}
	first := k.q
	other.renew(RC)
	k.q = first
	const n = 20 * maxFill
	k.backlog(n)
	if got := k.executed(); got != 1+maxFill {
		t.Fatalf("HandlePacket executes %d packets, want %d", got, 1+maxFill)
	}
	last := n
	for steps := 1; k.Filling(); steps++ {
		if at, ok := k.NextTimeout(); k.Idle() || !ok || at > k.now {
			t.Fatalf("Idle() = %v, NextTimeout() = %d, %v at %d with packets to execute", k.Idle(), at,
				ok, k.now)
		}
		for range 8 {
			last++
			k.say(k.flagTo(last))
		}
		other.say(other.read(steps-1, 0, 8))
		before, answers := k.executed(), 0
		for _, p := range other.listen() {
			if p.Info.Op == bth.OpReadResponse {
				answers++
			}
		}
		if got := k.executed() - before; got > maxFill || (got < maxFill && k.Filling()) {
			t.Fatalf("HandleTimeout executes %d packets, want %d", got, maxFill)
		}
		if answers != 1 {
			t.Fatalf("the other QP answers its READ with %d packets, want 1", answers)
		}
	}
	if got := k.executed(); got != last+1 {
		t.Fatalf("%d packets are executed at the end, want %d", got, last+1)
	}
	for i := 1; i <= last; i++ {
		if want := bytes.Repeat([]byte{byte(i%255 + 1)}, 8); !k.written(8*i, want) {
			t.Fatalf("WRITE %d is not in memory", i)
		}
	}
	k.listen()
	k.now += ackLate
	k.listen()
	if _, ok := k.NextTimeout(); ok || !k.Idle() || k.Counters().ParkedBytes != 0 {
		t.Errorf("at the end: Idle() = %v, a timer runs: %v, ParkedBytes = %d; want true, false, 0",
			k.Idle(), ok, k.Counters().ParkedBytes)
	}
}

// Each part is acknowledged, so the requester sees progress and sends nothing again.
func TestFillAcknowledges(t *testing.T) {
	k := newSelectiveTalk(t)
	k.backlog(2*maxFill + 2)
	k.hears(fmt.Sprintf("NAK PSN sequence error %+d msn=%d held %+d..%+d", 2*maxFill+1,
		2*maxFill+1, 2*maxFill+1, 2*maxFill+2))
	k.hears(fmt.Sprintf("ACK %+d msn=%d", 2*maxFill+2, 2*maxFill+3))
}

// A duplicate of the expected packet does not replace the held one: the data of a later packet may
// be in the same memory.
func TestFillIgnoresDuplicates(t *testing.T) {
	k := newSelectiveTalk(t)
	second := bytes.Repeat([]byte{9}, 2*talkMTU)
	a, b := k.writeParts(0, 0, seq(4*talkMTU)), k.writeParts(4, 2*talkMTU, second)
	k.say(a[0], a[2], a[3], b[0])
	k.placed(2) // a[2], and b[0] in the same memory
	k.fills.most = 0
	k.say(a[1], a[2])
	k.equal("executed packets", k.executed(), 2)
	k.fills.most = 1
	k.hears("NAK PSN sequence error +3 msn=0 held +3..+4 dup=1")
	k.say(b[1])
	for k.Filling() {
		k.listen()
	}
	k.equal("executed packets at the end", k.executed(), 6)
	k.equal("the first message", k.written(0, seq(4 * talkMTU)[:2*talkMTU]), true)
	k.equal("the second message", k.written(2*talkMTU, second), true)
}

// A held SEND without a receive stops the execution until it arrives again.
func TestFillRNR(t *testing.T) {
	k := newSelectiveTalk(t)
	k.fills.most = 2
	k.say(k.flagTo(1), k.flagTo(2), k.flagTo(3), send(4, seq(8)), k.flagTo(5), k.flagTo(6))
	k.say(k.flagTo(0))
	k.hears("RNR NAK timer 12 +4 msn=4 held +5..+6")
	k.equal("Filling", k.Filling(), false)
	k.recvs(8)
	k.fills.most = 1
	k.say(send(4, seq(8)))
	k.hears("ACK +6 msn=7")
	k.completes("1 success RECV 8B")
}

// A QP in SQD, as one in RTS, goes on. A refused packet ends the connection.
func TestFillStates(t *testing.T) {
	k := newSelectiveTalk(t)
	k.fills.most = 1
	k.say(k.flagTo(1), k.flagTo(2), k.flagTo(3))
	bad := k.flagTo(4)
	bad.key++
	k.say(bad, k.flagTo(5), k.flagTo(0))
	must(t, k.q.Modify(k.now, &Attr{State: SQD}, AttrState))
	k.listen()
	k.equal("executed packets", k.executed(), 3)
	k.is(SQD)
	k.listen()
	k.hears("NAK remote access error +4 msn=4")
	k.is(Err)
	k.hears() // returns the memory
	k.equal("Filling", k.Filling(), false)
	k.equal("ParkedBytes", k.Counters().ParkedBytes, uint64(0))
}

// If a QP with many held packets is reset or destroyed, or fails, its memory is returned in parts,
// and nothing more is executed.
func TestFillEnds(t *testing.T) {
	for name, end := range map[string]func(k *talk){
		"reset":     func(k *talk) { must(t, k.q.Modify(k.now, &Attr{State: Reset}, AttrState)) },
		"destroyed": func(k *talk) { k.DestroyQP(k.q) },
		"error":     func(k *talk) { must(t, k.q.Modify(k.now, &Attr{State: Err}, AttrState)) },
	} {
		k := newSelectiveTalk(t)
		k.backlog(4 * maxFill)
		completions := k.c.Completions
		end(k)
		for parts := 3; parts > 0; parts-- { // one part was executed
			k.equal("Filling after "+name, k.Filling(), parts > 1)
			used := k.Counters().ParkedBytes
			k.HandleTimeout(k.now)
			if got := used - k.Counters().ParkedBytes; got > 2*maxFill*(128+parkedOverhead) {
				t.Errorf("%s: HandleTimeout returns %d bytes of at most %d packets", name, got, maxFill)
			}
		}
		k.equal("Filling at the end", k.Filling(), false)
		k.equal("ParkedBytes", k.Counters().ParkedBytes, uint64(0))
		k.equal("Completions", k.c.Completions, completions)
		k.equal("written", k.written(8*(maxFill+1), make([]byte, 8)), true)
	}
}

package qp

import (
	"fmt"
	"testing"
)

// keepTalk is a talk whose owner sleeps, and whose program has answered many messages. next is the
// number of the next message and of the next answer.
func keepTalk(t *testing.T) (k *talk, next int) {
	k = newTalk(t, RC)
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
	if k.ReleaseAcks() || !k.Idle() || !k.OwesAck() {
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

// Without an answer, the ACK leaves after ackKept. After two messages that were not answered the
// program has to answer many again.
func TestKeptACKWithoutReply(t *testing.T) {
	k, next := keepTalk(t)
	for range 2 {
		k.say(k.write(next, seq(8)))
		due, ok := k.KeptAckDue()
		if !ok {
			t.Fatalf("the ACK of message %d is not kept", next)
		}
		k.now = due - 1001
		k.hears()
		k.now = due
		k.hears(ackOf(next))
		next++
	}
	k.say(k.write(next, seq(8)))
	if k.keeps() {
		t.Error("the ACK of a message is kept although the program did not answer the last two")
	}
}

func (k *talk) keeps() bool {
	_, ok := k.KeptAckDue()
	return ok
}

// An ACK does not wait if another message comes before the answer, and without KeepAcks.
func TestACKNotKept(t *testing.T) {
	k, next := keepTalk(t)
	k.say(k.write(next, seq(8)))
	k.say(k.write(next+1, seq(8)))
	k.hears(ackOf(next + 1))

	k, next = keepTalk(t)
	k.KeepAcks(false)
	k.say(k.write(next, seq(8)))
	if k.keeps() || !k.ReleaseAcks() {
		t.Error("an ACK is kept after KeepAcks(false)")
	}
	k.hears(ackOf(next))
}

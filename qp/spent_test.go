package qp

import "testing"

// A QP that has sent its last packet leaves the run queue, so HasTransmit is accurate. A pending
// response is not forgotten: an unrequested ACK is sent when it is due.
func TestIdleQPLeavesRunQueue(t *testing.T) {
	k := newTalk(t, RC)
	for _, owes := range []bool{false, true} {
		if owes {
			quiet := k.write(0, seq(8))
			quiet.noAck = true
			k.say(quiet)
		}
		due := k.now + ackLate
		wr := k.wr(1, OpWrite, 8)
		wr.Flags = 0
		if _, err := k.q.PostSend([]SendWR{wr, wr}); err != nil {
			t.Fatal(err)
		}
		k.now += 1000
		k.HandleDoorbells(k.now)
		var buf [512]byte
		for i := range 2 {
			if !k.HasTransmit(k.now) || k.serving == nil {
				t.Fatalf("owes %v: WRITE %d is not scheduled", owes, i)
			}
			if tx := k.PollTransmit(k.now, buf[:]); tx == nil {
				t.Fatalf("owes %v: WRITE %d is not sent", owes, i)
			}
		}
		if k.HasTransmit(k.now) || k.serving != nil {
			t.Errorf("owes %v: the QP is scheduled although nothing is left", owes)
		}
		if owes {
			k.now = due
			k.hears("ACK +0 msn=1")
		}
	}
}

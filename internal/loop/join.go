package loop

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/qp"
)

// joiner has memory in which the packets of a run are adjacent.
type joiner struct {
	port   driver.RunSender // nil: runs are not sent in one buffer
	b      []byte
	end    int // of the packets in b
	netLen int // length of the headers of the latest run
}

// accepts reports whether the port accepts a run of about n bytes.
func (j *joiner) accepts(n int) bool {
	if j.port == nil {
		return false
	}
	least := j.port.LeastRun()
	return least > 0 && n >= least
}

// buildRun builds up to most packets that differ from the latest one only in PSN and payload, in
// free buffers from number i on. It returns them, or nil, and the number of buffers.
func (l *Loop) buildRun(now qp.Time, i, most int) (r *qp.Run, used int) {
	latest := len(l.tx[l.txAt+i-1].B)
	join := l.tracer == nil && l.joiner.accepts(most*latest)
	if !join {
		most = min(most, l.txn-i)
	}
	bufs := l.tx[l.txAt+i:]
	r = l.eng.PollRun(now, most, len(bufs[0].B)-bth.ICRCLen)
	if r == nil {
		return nil, 0
	}
	l.ctr.TxBytes += uint64(r.Packets * (r.Len + bth.ICRCLen))
	if join {
		l.join(r, &bufs[0])
		return r, 1
	}
	for k := range r.Packets {
		b := &bufs[k]
		b.B = b.B[:r.Len+bth.ICRCLen]
		payload := r.Put(b.B, k)
		l.enc.FinishWith(b.B, r.NetLen, len(r.Header), payload)
		if l.tracer != nil {
			l.tracer.sent(r.QPN, b.B)
		}
	}
	return r, r.Packets
}

// join builds the packets of a run behind each other and makes buf consist of them. The headers of
// a packet are needed for the ICRC only, and overlap the end of the packet before it. So the last
// one is built first.
func (l *Loop) join(r *qp.Run, buf *driver.Buf) {
	j := &l.joiner
	frame := r.Len + bth.ICRCLen
	buf.Size = frame - r.NetLen
	n := r.NetLen + r.Packets*buf.Size
	if len(j.b) < j.end+n {
		j.b, j.end = make([]byte, txBatch*len(buf.B)), 0 // earlier runs remain where they are
	}
	b := j.b[j.end:][:n:n]
	j.end += n
	j.netLen = r.NetLen
	l.enc.FinishHeaders(r.Header, r.NetLen, frame)
	for i := r.Packets - 1; i >= 0; i-- {
		f := b[i*buf.Size:][:frame]
		payload := r.Put(f, i)
		l.enc.FinishPart(f, r.NetLen, len(r.Header), payload, i)
	}
	buf.B = b[r.NetLen:]
	buf.Token |= driver.NoHeaders
}

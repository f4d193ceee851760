package loop

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/qp"
)

// joiner has memory in which the middle packets of a batch are adjacent, for a driver.Overlapper.
type joiner struct {
	on     bool
	b      []byte
	end    int // of the packets in b
	netLen int // length of the headers of the latest frame
}

// join builds the next packet behind the ones before, and makes it a frame without headers in buf.
// It returns nil if there was none.
func (l *Loop) join(now qp.Time, buf *driver.Buf) *qp.Transmit {
	j := &l.joiner
	if len(j.b) < j.end+len(buf.B) {
		j.b = append(j.b, make([]byte, bth.MaxNetHeader+len(buf.B)*txBatch)...)
	}
	frame := j.b[j.end-j.netLen:][:len(buf.B)]
	// The headers are needed for the ICRC only.
	end := (*[bth.MaxNetHeader]byte)(j.b[j.end-bth.MaxNetHeader:])
	before := *end
	tx := l.eng.PollNext(now, frame[:len(frame)-bth.ICRCLen])
	if tx == nil {
		return nil
	}
	l.finish(tx, frame[:tx.Len+bth.ICRCLen])
	*end = before
	n := tx.Len + bth.ICRCLen - j.netLen
	buf.B = j.b[j.end:][:n]
	buf.Token |= driver.NoHeaders
	j.end += n
	return tx
}

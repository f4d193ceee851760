package cm

// answer is a MAD to send that needs no connection.
type answer struct {
	to            Addr
	attr          Attribute
	tid           uint64
	local, remote CommID
	service       ServiceID
	reason        Reason
	message       Answered
	status        uint8 // of an APR or a SIDR_REP
}

// answers is a ring buffer.
type answers struct {
	ring    [answerRing]answer
	head, n int
}

// answer queues a. If the queue is full, it drops a; the peer will retransmit.
func (m *CM) answer(a answer) {
	r := &m.answers
	if r.n == answerRing {
		m.c.DropAnswer++
		return
	}
	m.responded = true
	r.ring[(r.head+r.n)%answerRing] = a
	r.n++
}

// pop removes the first answer and writes its MAD. The ring must not be empty.
func (r *answers) pop(out *MAD) Addr {
	a := &r.ring[r.head]
	r.head = (r.head + 1) % answerRing
	r.n--
	switch a.attr {
	case AttrREJ:
		j := REJ{LocalID: a.local, RemoteID: a.remote, Message: a.message, Reason: a.reason}
		j.Encode(out, a.tid)
	case AttrDREP:
		d := DREP{LocalID: a.local, RemoteID: a.remote}
		d.Encode(out, a.tid)
	case AttrSIDRREP:
		s := SIDRREP{RequestID: a.remote, Service: a.service, Status: SIDRStatus(a.status)}
		s.Encode(out, a.tid)
	default:
		l := APR{LocalID: a.local, RemoteID: a.remote, Status: a.status}
		l.Encode(out, a.tid)
	}
	return a.to
}

// refuseREQ answers the request in m.req with a REJ, without a connection.
func (m *CM) refuseREQ(p *packet, reason Reason) {
	m.answer(answer{
		to: p.from, attr: AttrREJ, tid: p.m.TID(), remote: m.req.LocalID,
		reason: reason, message: AnswersREQ,
	})
}

package cm

import (
	"fmt"
)

// Resolve asks a peer for the datagram QP of a service (IBA 12.11). EventSIDRResponse or
// EventUnreachable follows, then EventClosed. The private data may have SIDRREQPrivateLen bytes,
// minus IPCMHeaderLen for services of rdma_cm.
//
// Errors: ErrParams, ErrPrivateData, ErrTooMany.
func (m *CM) Resolve(now Time, p *SIDRParams) (CommID, error) {
	if p.ResponseTimeout > maxExponent || p.MaxRetries > maxCMRetries {
		return 0, fmt.Errorf("%w: timeout exponent %d (at most 31), retries %d (at most 15)",
			ErrParams, p.ResponseTimeout, p.MaxRetries)
	}
	if err := checkAddrs(p.Local, p.Remote); err != nil {
		return 0, err
	}
	n := privateLen(p.Service, SIDRREQPrivateLen)
	if err := checkPrivate(p.PrivateData, n, "SIDR request for this service"); err != nil {
		return 0, err
	}
	q := ConnectParams{PKey: p.PKey, ResponseTimeout: p.ResponseTimeout, MaxRetries: p.MaxRetries}
	q.defaults()
	c := m.newConn(now, gsiAddr(p.Local, p.Remote, q.PKey))
	if c == nil {
		return 0, ErrTooMany
	}
	c.active, c.service, c.tid = true, p.Service, m.rand()
	c.interval, c.maxRetries = exponentTime(q.ResponseTimeout), q.MaxRetries
	r := SIDRREQ{RequestID: c.id, PKey: q.PKey, Service: p.Service}
	putRequestPrivate(r.Private[:], p.Service, p.Local, p.Remote, p.SourcePort, p.PrivateData)
	r.Encode(c.message(), c.tid)
	m.await(now, c, StateSIDRREQSent)
	return c.id, nil
}

// newSIDR handles the SIDR_REQ in m.sreq, which is not a duplicate.
func (m *CM) newSIDR(now Time, p *packet) {
	r := &m.sreq
	l := m.listenerFor(r.Service, p.from.Local)
	if !m.permits(p, l) {
		return
	}
	var h IPCMHeader
	status := SIDRSuccess
	switch {
	case l == nil || r.Service.IsTCP():
		status = SIDRUnsupportedService
	case !m.hasPKey(r.PKey):
		m.c.BadPKey++
		status = SIDRRejected
	case r.Service.IsIP() && h.Decode((*[IPCMHeaderLen]byte)(r.Private[:])) != nil:
		m.c.Malformed++
		status = SIDRRejected
	}
	if status != SIDRSuccess {
		m.answer(answer{
			to: p.from, attr: AttrSIDRREP, tid: p.m.TID(), remote: r.RequestID,
			service: r.Service, status: uint8(status),
		})
		return
	}
	c := m.admit(now, l, p, remoteKey{p.from.Remote, 0, r.RequestID, true})
	if c == nil {
		return
	}
	c.service, c.interval = r.Service, sidrRepeat
	m.setState(now, c, StateSIDRREQRcvd)
	m.arm(c, now+sidrPending)
	e := Event{
		Kind: EventSIDRRequest, Listener: l.id,
		Request:     &Request{Addr: p.from, Service: r.Service, PKey: r.PKey},
		PrivateData: requestPrivate(r.Service, r.Private[:]),
	}
	e.Request.setIPCM(&h)
	m.emit(c, e)
}

// ReplySIDR answers EventSIDRRequest. EventClosed follows.
//
// Errors: ErrUnknownID, ErrState, ErrParams, ErrPrivateData.
func (m *CM) ReplySIDR(now Time, id CommID, r *SIDRReply) error {
	c, err := m.inState(id, StateSIDRREQRcvd)
	if err != nil {
		return err
	}
	if r.Status == SIDRSuccess && !validQPN(r.QPN) {
		return fmt.Errorf("%w: QPN %v", ErrParams, r.QPN)
	}
	if len(r.Info) > InfoLen {
		return fmt.Errorf("%w: %d bytes of additional information; at most %d", ErrParams,
			len(r.Info), InfoLen)
	}
	if err := checkPrivate(r.PrivateData, SIDRREPPrivateLen, "SIDR reply"); err != nil {
		return err
	}
	m.replySIDR(now, c, r)
	return nil
}

func (m *CM) replySIDR(now Time, c *conn, r *SIDRReply) {
	s := SIDRREP{
		RequestID: c.remoteID, Service: c.service, Status: r.Status, QPN: r.QPN, QKey: r.QKey,
		InfoLen: uint8(len(r.Info)),
	}
	copy(s.Info[:], r.Info)
	copy(s.Private[:], r.PrivateData)
	s.Encode(c.message(), c.tid)
	m.silence(c)
	m.release(c)
	m.linger(now, c, StateSIDRREPSent)
}

// handleSIDRREP ends the exchange.
func (m *CM) handleSIDRREP(now Time, c *conn, p *packet) {
	r := &m.srep
	r.Decode(p.m)
	if r.Service != c.service || (r.Status == SIDRSuccess && !validQPN(r.QPN)) {
		m.c.Malformed++
		return
	}
	reply := &SIDRReply{Status: r.Status, QPN: r.QPN, QKey: r.QKey}
	if n := min(int(r.InfoLen), InfoLen); n > 0 {
		reply.Info = append([]byte(nil), r.Info[:n]...)
	}
	m.emit(c, Event{
		Kind: EventSIDRResponse, Reply: reply, PrivateData: append([]byte(nil), r.Private[:]...),
	})
	m.closed(now, c)
}

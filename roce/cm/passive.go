package cm

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gorxe/gorxe/bth"
)

// Listen starts a listener. Requests for the service cause EventConnectRequest, or EventSIDRRequest
// for services of RDMA_PS_UDP. A listener on one address has precedence over one on all addresses
// of its family, and that over one on all addresses of both.
//
// Errors: ErrParams, ErrListening, ErrTooManyListen.
func (m *CM) Listen(p ListenParams) (ListenerID, error) {
	if p.Backlog == 0 {
		p.Backlog = DefaultBacklog
	}
	if p.Backlog < 1 || p.Backlog > maxBacklog {
		return 0, fmt.Errorf("%w: backlog %d; choose 1 to %d", ErrParams, p.Backlog, maxBacklog)
	}
	if p.Family > IPv6 {
		return 0, fmt.Errorf("%w: unknown address family %d", ErrParams, p.Family)
	}
	k := listenKey{p.Service, p.Local, p.Family}
	if !p.Local.IsZero() {
		k.family = familyOf(p.Local)
	}
	if m.listeners[k] != nil {
		return 0, fmt.Errorf("%w: %v", ErrListening, p.Service)
	}
	if len(m.listeners) >= maxListeners {
		return 0, ErrTooManyListen
	}
	for m.lastListener++; m.lastListener == 0 ||
		m.listenersBy[m.lastListener] != nil; m.lastListener++ {
	}
	l := &listener{id: m.lastListener, key: k, pending: newPool(p.Backlog), peers: p.Peers}
	m.listeners[k], m.listenersBy[l.id] = l, l
	return l.id, nil
}

// Unlisten stops a listener. Requests whose events have not been polled are refused; the user must
// still answer the others.
//
// Errors: ErrNoListener.
func (m *CM) Unlisten(now Time, id ListenerID) error {
	l := m.listenersBy[id]
	if l == nil {
		return ErrNoListener
	}
	delete(m.listeners, l.key)
	delete(m.listenersBy, id)
	for c := m.eventful.head; c != nil; {
		next := c.links[linkEvent].next
		if c.listener == l &&
			(c.events[0].Kind == EventConnectRequest || c.events[0].Kind == EventSIDRRequest) {
			m.silence(c)
			c.user = false
			if c.state == StateSIDRREQRcvd {
				m.replySIDR(now, c, &SIDRReply{Status: SIDRUnsupportedService})
			} else {
				m.refuse(now, c, REJ{Message: AnswersREQ, Reason: ReasonInvalidServiceID})
			}
		}
		c = next
	}
	return nil
}

func (m *CM) listenerFor(s ServiceID, local bth.GID) *listener {
	family := familyOf(local)
	for _, k := range [...]listenKey{{s, local, family}, {s, bth.GID{}, family}} {
		if l := m.listeners[k]; l != nil {
			return l
		}
	}
	return m.listeners[listenKey{service: s}]
}

// newRequest handles the REQ in m.req, which is not a duplicate (Idle -> REQ Rcvd).
func (m *CM) newRequest(now Time, p *packet) {
	r := &m.req
	if r.LocalID == 0 || !validQPN(r.QPN) {
		m.c.Malformed++
		return
	}
	l := m.listenerFor(r.Service, p.from.Local)
	if !m.permits(p, l) {
		return
	}
	k := qpKey{p.from.Remote, r.GUID, r.QPN}
	if old := m.byQP[k]; old != nil {
		m.suspect(now, old)
		m.refuseREQ(p, ReasonStaleConnection)
		return
	}
	var h IPCMHeader
	switch {
	case l == nil || r.Service.IsUDP():
		m.refuseREQ(p, ReasonInvalidServiceID)
		return
	case r.Transport > UC || r.ExtendedTransport != 0:
		m.refuseREQ(p, ReasonInvalidTransport)
		return
	case !m.hasPKey(r.PKey):
		m.c.BadPKey++
		m.refuseREQ(p, ReasonUnsupported)
		return
	case bth.MTUFromEnum(r.MTU) == 0:
		m.refuseREQ(p, ReasonInvalidMTU)
		return
	case r.Service.IsIP() && h.Decode((*[IPCMHeaderLen]byte)(r.Private[:])) != nil:
		m.c.Malformed++
		m.refuseREQ(p, ReasonUnsupported)
		return
	}
	c := m.admit(now, l, p, remoteKey{p.from.Remote, r.GUID, r.LocalID, false})
	if c == nil {
		return
	}
	c.qp, c.localQPN = k, 0
	c.psn, c.features = r.PSN, r.offer()
	c.interval, c.timeWait = peerTime(r.LocalTimeout), peerTime(r.Primary.AckTimeout)
	c.maxRetries = r.MaxCMRetries
	c.responder, c.depth = r.InitiatorDepth, r.ResponderResources
	c.lastCall = now + maxPending
	c.again = now + peerTime(r.RemoteTimeout)/2
	m.setState(now, c, StateREQRcvd)
	// The peer waits no longer than this without an MRA.
	m.arm(c, min(now+peerTime(r.RemoteTimeout)*Time(r.MaxCMRetries+1), c.lastCall))
	e := Event{
		Kind: EventConnectRequest, Listener: l.id, Request: r.event(p),
		PrivateData: requestPrivate(r.Service, r.Private[:]),
	}
	e.Request.setIPCM(&h)
	e.Request.Features = c.features
	m.emit(c, e)
}

// offer returns the features that the request offers, and removes them from the private data.
func (r *REQ) offer() Features {
	if r.Transport != RC {
		return 0
	}
	return takeTrailer(r.Private[:], offerMagic, binding{r.QPN, r.PSN})
}

// hasPKey reports whether a request may name the partition of key.
func (m *CM) hasPKey(key bth.PKey) bool {
	return m.pkeys == nil || slices.ContainsFunc(m.pkeys, key.Matches)
}

func (r *REQ) event(p *packet) *Request {
	return &Request{
		Addr: p.from, Service: r.Service, GUID: r.GUID, Transport: r.Transport, QPN: r.QPN,
		PSN: r.PSN, PKey: r.PKey,
		MTU: bth.MTUFromEnum(r.MTU), ResponderResources: r.ResponderResources,
		InitiatorDepth: r.InitiatorDepth,
		RetryCount:     r.RetryCount, RNRRetry: r.RNRRetry, FlowControl: r.FlowControl, SRQ: r.SRQ,
		AckTimeout: r.Primary.AckTimeout, FlowLabel: r.Primary.FlowLabel,
		TrafficClass: r.Primary.TrafficClass, SL: r.Primary.SL, HopLimit: r.Primary.HopLimit,
	}
}

// setIPCM copies the rdma_cm header, if the service has one.
func (r *Request) setIPCM(h *IPCMHeader) {
	if r.Service.IsIP() {
		r.Source, r.Destination = h.Src, netip.AddrPortFrom(h.Dst, r.Service.Port())
	}
}

func requestPrivate(s ServiceID, b []byte) []byte {
	return append([]byte(nil), b[len(b)-privateLen(s, len(b)):]...)
}

// admit creates a connection for a request, unless the listener's backlog, the limit of half-open
// connections or the table is full. The sender retransmits a dropped request later, when there may
// be space again.
func (m *CM) admit(now Time, l *listener, p *packet, k remoteKey) *conn {
	switch l.pending.admit(k.gid) {
	case poolFull:
		m.c.DropBacklog++
		return nil
	case shareTaken:
		m.c.DropSource++
		return nil
	}
	if v := m.halfOpen.admit(k.gid); v == shareTaken || (v == poolFull && !m.evictHalfOpen(now)) {
		m.c.DropHalfOpen++
		return nil
	}
	c := m.newConn(now, p.from)
	if c == nil {
		m.c.DropFull++
		return nil
	}
	c.listener, c.remoteID, c.tid, c.remote = l, k.id, p.m.TID(), k
	c.verified = false
	c.grant()
	m.byRemote[k] = c
	c.inRemote = true
	return c
}

// evictHalfOpen gives up the accepted connection that has waited longest for its RTU. It protects
// against requests from many addresses that do not proceed.
func (m *CM) evictHalfOpen(now Time) bool {
	c := m.ages[ageHalfOpen].head
	if c == nil || now-c.since < answerGrace {
		return false
	}
	m.c.EvictedHalfOpen++
	m.giveUp(now, c)
	return true
}

// duplicateREQ handles a REQ that is retransmitted because the user has not answered yet.
func (m *CM) duplicateREQ(now Time, c *conn, p *packet) { m.extend(now, c, p) }

// staleREQ handles a REQ with the communication ID of a connection that is ending here.
func (m *CM) staleREQ(_ Time, _ *conn, p *packet) { m.refuseREQ(p, ReasonStaleConnection) }

// requestExpired handles a request that the user did not answer while its sender waited.
func (m *CM) requestExpired(now Time, c *conn) {
	m.c.GaveUp++
	m.conclude(c, Event{Kind: EventUnreachable})
	m.closed(now, c)
}

// Accept accepts a request, which answers EventConnectRequest. The QP must be in RTR at least.
// EventEstablished, EventRejected or EventUnreachable follows.
//
// Errors: ErrUnknownID, ErrState, ErrParams, ErrPrivateData.
func (m *CM) Accept(now Time, id CommID, p *AcceptParams) error {
	c, err := m.inState(id, StateREQRcvd, StateMRAREQSent)
	if err != nil {
		return err
	}
	switch {
	case !validQPN(p.QPN) || p.PSN > 1<<24-1:
		return fmt.Errorf("%w: QPN %v or PSN %v", ErrParams, p.QPN, p.PSN)
	case p.RNRRetry > maxRetryCount:
		return fmt.Errorf("%w: RNR retry count %d above 7", ErrParams, p.RNRRetry)
	case p.ResponderResources > c.responder || p.InitiatorDepth > c.depth:
		return fmt.Errorf("%w: responder resources %d and initiator depth %d; "+
			"the request allows %d and %d", ErrParams, p.ResponderResources, p.InitiatorDepth,
			c.responder, c.depth)
	case p.Features&^c.features != 0:
		return fmt.Errorf("%w: features %#x; the request offers %#x", ErrParams, p.Features,
			c.features)
	}
	limit := REPPrivateLen
	if p.Features != 0 {
		limit -= trailerLen
	}
	if err := checkPrivate(p.PrivateData, limit, "REP"); err != nil {
		return err
	}
	c.localQPN = p.QPN
	r := REP{
		LocalID: c.id, RemoteID: c.remoteID, QPN: p.QPN, PSN: p.PSN,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		AckDelay: m.ackDelay, RNRRetry: p.RNRRetry, FlowControl: p.FlowControl, SRQ: p.SRQ,
		GUID: m.guid,
	}
	copy(r.Private[:], p.PrivateData)
	putTrailer(r.Private[:], acceptMagic, p.Features, binding{r.QPN, r.PSN},
		binding{c.qp.qpn, c.psn})
	r.Encode(c.message(), c.tid)
	c.lastCall = now + maxHalfOpen
	if !c.verified {
		c.lastCall = now + maxUnverified
	}
	m.await(now, c, StateREPSent)
	return nil
}

// Reject refuses a request or a response. reason is ReasonConsumer if the application decides so.
// private has at most REJPrivateLen bytes; info, at most InfoLen bytes, is the additional
// information that some reasons need. EventClosed follows.
//
// Errors: ErrUnknownID, ErrState, ErrParams, ErrPrivateData.
func (m *CM) Reject(now Time, id CommID, reason Reason, info, private []byte) error {
	c, err := m.inState(id, StateREQRcvd, StateMRAREQSent, StateREPRcvd, StateMRAREPSent)
	if err != nil {
		return err
	}
	if len(info) > InfoLen {
		return fmt.Errorf("%w: %d bytes of additional information; at most %d", ErrParams,
			len(info), InfoLen)
	}
	if err := checkPrivate(private, REJPrivateLen, "REJ"); err != nil {
		return err
	}
	j := REJ{Reason: reason, Message: AnswersREQ, InfoLen: uint8(len(info))}
	if c.active {
		j.Message = AnswersREP
	}
	copy(j.Info[:], info)
	copy(j.Private[:], private)
	m.silence(c)
	m.refuse(now, c, j)
	return nil
}

// SendMRA asks the peer to wait for the answer to its request or response: 4.096 us x 2^t, t up to
// 31. The CM also sends an MRA by itself when the peer retransmits its message.
//
// Errors: ErrUnknownID, ErrState, ErrParams.
func (m *CM) SendMRA(now Time, id CommID, t uint8) error {
	c, err := m.inState(id, StateREQRcvd, StateMRAREQSent, StateREPRcvd, StateMRAREPSent)
	if err != nil {
		return err
	}
	if t > maxExponent {
		return fmt.Errorf("%w: timeout exponent %d; at most 31", ErrParams, t)
	}
	m.sendMRA(now, c, t)
	return nil
}

// handleRTU completes the setup (REP Sent, MRA Rcvd -> Established).
func (m *CM) handleRTU(now Time, c *conn, p *packet) {
	var r RTU
	r.Decode(p.m)
	m.established(now, c, r.Private[:])
}

func (m *CM) established(now Time, c *conn, private []byte) {
	c.verify(now)
	m.disarm(c)
	m.unsend(c)
	m.setState(now, c, StateEstablished)
	m.emit(c, Event{Kind: EventEstablished, PrivateData: append([]byte(nil), private...)})
}

// handleMRAForREP extends the wait for the RTU (REP Sent -> MRA Rcvd).
func (m *CM) handleMRAForREP(now Time, c *conn, p *packet) {
	m.handleMRA(now, c, p, AnswersREP, StateMRAREPRcvd)
}

// CommEstablished reports that the QP of an accepted connection has received a packet. So the peer
// is ready, even if its RTU is late or lost (event COMM_EST of verbs; IBA 12.9). It has no effect
// in other states.
func (m *CM) CommEstablished(now Time, id CommID) {
	if c, err := m.inState(id, StateREPSent, StateMRAREPRcvd); err == nil {
		m.established(now, c, nil)
	}
}

package cm

import (
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
)

// Connect sends a connection request to a peer and returns the connection's ID.
// EventConnectResponse, EventRejected or EventUnreachable follows. The private data may have
// REQPrivateLen bytes, minus IPCMHeaderLen for services of rdma_cm.
//
// Errors: ErrParams, ErrPrivateData, ErrTooMany.
func (m *CM) Connect(now Time, p *ConnectParams) (CommID, error) {
	if err := p.check(); err != nil {
		return 0, err
	}
	q := *p
	q.defaults()
	c := m.newConn(now, gsiAddr(q.Local, q.Remote, q.PKey))
	if c == nil {
		return 0, ErrTooMany
	}
	c.active, c.service, c.localQPN = true, q.Service, q.QPN
	c.psn, c.features = q.PSN, q.Features
	c.tid = m.rand()
	c.interval, c.maxRetries = exponentTime(q.ResponseTimeout), q.MaxRetries
	c.timeWait = peerTime(q.AckTimeout)
	r := q.request()
	r.LocalID, r.GUID = c.id, m.guid
	r.Encode(c.message(), c.tid)
	m.await(now, c, StateREQSent)
	return c.id, nil
}

// gsiAddr returns the address of QP1 of a peer.
func gsiAddr(local, remote bth.GID, key bth.PKey) Addr {
	return Addr{GIDPair: bth.GIDPair{Local: local, Remote: remote}, QPN: bth.QPNGSI, PKey: key}
}

// privateLen returns how much of n bytes of private data a request leaves to the user.
func privateLen(s ServiceID, n int) int {
	if s.IsIP() {
		return n - IPCMHeaderLen
	}
	return n
}

func checkPrivate(p []byte, n int, what string) error {
	if len(p) > n {
		return fmt.Errorf("%w: %d bytes; a %s has at most %d", ErrPrivateData, len(p), what, n)
	}
	return nil
}

func checkAddrs(local, remote bth.GID) error {
	if local.IsZero() || remote.IsZero() || local.IsMulticast() || remote.IsMulticast() ||
		local.IsIPv4() != remote.IsIPv4() {
		return fmt.Errorf("%w: addresses %v and %v", ErrParams, local, remote)
	}
	return nil
}

func validQPN(q bth.QPN) bool { return q > bth.QPNGSI && q < bth.QPNMulticast }

func (p *ConnectParams) check() error {
	switch {
	case p.Transport > UC:
		return fmt.Errorf("%w: %v; only RC and UC exist", ErrParams, p.Transport)
	case !validQPN(p.QPN) || p.PSN > 1<<24-1:
		return fmt.Errorf("%w: QPN %v or PSN %v", ErrParams, p.QPN, p.PSN)
	case !p.MTU.Valid():
		return fmt.Errorf("%w: path MTU %d", ErrParams, p.MTU)
	case p.RetryCount > maxRetryCount || p.RNRRetry > maxRetryCount || p.MaxRetries > maxCMRetries:
		return fmt.Errorf("%w: retry count %d or RNR retry count %d above 7, or CM retries %d above 15",
			ErrParams, p.RetryCount, p.RNRRetry, p.MaxRetries)
	case p.AckTimeout > maxExponent || p.ResponseTimeout > maxExponent:
		return fmt.Errorf("%w: timeout exponents %d and %d; at most 31",
			ErrParams, p.AckTimeout, p.ResponseTimeout)
	case p.FlowLabel > 1<<20-1 || p.SL > maxSL:
		return fmt.Errorf("%w: flow label %#x or service level %d", ErrParams, p.FlowLabel, p.SL)
	}
	if err := checkAddrs(p.Local, p.Remote); err != nil {
		return err
	}
	return checkPrivate(p.PrivateData, privateLen(p.Service, REQPrivateLen),
		"request for this service")
}

func (p *ConnectParams) defaults() {
	if p.PKey == 0 {
		p.PKey = bth.DefaultPKey
	}
	if p.AckTimeout == 0 {
		p.AckTimeout = DefaultAckTimeout
	}
	if p.ResponseTimeout == 0 {
		p.ResponseTimeout = DefaultResponseTimeout
	}
	if p.MaxRetries == 0 {
		p.MaxRetries = maxCMRetries
	}
	if p.HopLimit == 0 {
		p.HopLimit = 64
	}
	if p.Transport != RC ||
		!trailerFits(len(p.PrivateData), privateLen(p.Service, REQPrivateLen)) {
		p.Features = 0
	}
}

func (p *ConnectParams) request() REQ {
	const permissiveLID = 0xffff
	r := REQ{
		Service: p.Service, QPN: p.QPN, PSN: p.PSN, PKey: p.PKey, MTU: p.MTU.Enum(),
		Transport:          p.Transport,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		RemoteTimeout: p.ResponseTimeout, LocalTimeout: p.ResponseTimeout,
		MaxCMRetries: p.MaxRetries,
		RetryCount:   p.RetryCount, RNRRetry: p.RNRRetry, FlowControl: p.FlowControl, SRQ: p.SRQ,
		Primary: Path{
			LocalLID: permissiveLID, RemoteLID: permissiveLID, LocalGID: p.Local,
			RemoteGID: p.Remote,
			FlowLabel: p.FlowLabel, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit,
			SL: p.SL, AckTimeout: p.AckTimeout,
		},
	}
	putRequestPrivate(r.Private[:], p.Service, p.Local, p.Remote, p.SourcePort, p.PrivateData)
	putTrailer(r.Private[:], offerMagic, p.Features, binding{p.QPN, p.PSN})
	return r
}

// putRequestPrivate writes the private data of a request, with the rdma_cm header if the service
// has one.
func putRequestPrivate(b []byte, s ServiceID, local, remote bth.GID, port uint16, private []byte) {
	if s.IsIP() {
		h := IPCMHeader{Src: netip.AddrPortFrom(local.Addr(), port), Dst: remote.Addr()}
		h.Encode((*[IPCMHeaderLen]byte)(b))
		b = b[IPCMHeaderLen:]
	}
	copy(b, private)
}

// handleREP handles the peer's acceptance (REQ Sent, MRA Rcvd -> REP Rcvd).
func (m *CM) handleREP(now Time, c *conn, p *packet) {
	r := &m.rep
	r.Decode(p.m)
	if r.LocalID == 0 || !validQPN(r.QPN) {
		m.c.Malformed++
		return
	}
	c.remoteID = r.LocalID
	c.qp = qpKey{c.addr.Remote, r.GUID, r.QPN}
	if old := m.byQP[c.qp]; old != nil {
		// An older connection here uses the peer's QP, so the peer may have forgotten it (IBA
		// 12.4.1, 12.9.8.3.1).
		m.suspect(now, old)
		m.conclude(c, Event{Kind: EventRejected, Local: true, Reason: ReasonStaleConnection})
		m.refuse(now, c, REJ{Message: AnswersREP, Reason: ReasonStaleConnection})
		return
	}
	m.disarm(c)
	m.unsend(c)
	c.again = now + c.interval/2 // the REQ told the peer to retransmit after the interval
	m.setState(now, c, StateREPRcvd)
	accepted := takeTrailer(r.Private[:], acceptMagic, binding{r.QPN, r.PSN},
		binding{c.localQPN, c.psn}) & c.features
	m.emit(c, Event{
		Kind: EventConnectResponse,
		Response: &Response{
			GUID: r.GUID, QPN: r.QPN, PSN: r.PSN,
			ResponderResources: r.ResponderResources, InitiatorDepth: r.InitiatorDepth,
			AckDelay: r.AckDelay, RNRRetry: r.RNRRetry, FlowControl: r.FlowControl, SRQ: r.SRQ,
			Features: accepted,
		},
		PrivateData: append([]byte(nil), r.Private[:]...),
	})
}

// handleMRAForREQ extends the wait for the REP (REQ Sent -> MRA Rcvd).
func (m *CM) handleMRAForREQ(now Time, c *conn, p *packet) {
	m.handleMRA(now, c, p, AnswersREQ, StateMRAREQRcvd)
}

// duplicateREP handles a REP that is retransmitted because the user has not called Ready yet.
func (m *CM) duplicateREP(now Time, c *conn, p *packet) { m.extend(now, c, p) }

// Ready tells the peer that the local QP is in RTS, which answers EventConnectResponse. The
// connection is established then. private has at most RTUPrivateLen bytes.
//
// Errors: ErrUnknownID, ErrState, ErrPrivateData.
func (m *CM) Ready(now Time, id CommID, private []byte) error {
	c, err := m.inState(id, StateREPRcvd, StateMRAREPSent)
	if err != nil {
		return err
	}
	if err := checkPrivate(private, RTUPrivateLen, "RTU"); err != nil {
		return err
	}
	r := RTU{LocalID: c.id, RemoteID: c.remoteID}
	copy(r.Private[:], private)
	r.Encode(c.message(), c.tid)
	m.disarm(c)
	m.setState(now, c, StateEstablished)
	m.send(c)
	return nil
}

// resendRTU handles a REP that is retransmitted because the RTU was lost.
func (m *CM) resendRTU(now Time, c *conn, p *packet) {
	if !c.active {
		m.c.Late[p.attr.Index()]++
		return
	}
	m.answerDuplicate(now, c, p)
}

package ucma

import (
	"net/netip"
	"syscall"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/roce/cm"
)

// defaultAckTimeout is the Local ACK Timeout in requests: 0.54 s, as in package roce.
const defaultAckTimeout = 17

// maxAckTimeout is the largest Local ACK Timeout, a field of 5 bits in the request.
const maxAckTimeout = 31

// connect sends a connection request, or asks for the datagram QP of a service.
func (q *command) connect(now cm.Time, m *cm.CM) ([]byte, syscall.Errno) {
	p := q.in.connParam()
	i, no := q.id()
	switch {
	case no != 0:
		return nil, no
	case i.state != routed || !p.valid:
		return nil, syscall.EINVAL
	}
	var err error
	gids := i.path.GIDs()
	if i.datagram() {
		i.comm, err = m.Resolve(now, &cm.SIDRParams{Local: gids.Local, Remote: gids.Remote,
			Service: cm.UDPService(i.dst.Port()), SourcePort: i.src.Port(), PrivateData: p.private})
	} else {
		i.params = i.connectParams(&p)
		i.comm, err = m.Connect(now, i.params)
	}
	if err != nil {
		i.comm = 0
		return nil, errno(err)
	}
	i.state, i.qpn = connected, p.qpn
	inside.HandleConn(i.dev.dev, i.comm, gids, i.path, i.onEvent)
	return nil, 0
}

// connectParams returns the contents of a request.
func (i *id) connectParams(p *connParam) *cm.ConnectParams {
	a := i.path.Address()
	c := &cm.ConnectParams{
		Local: a.Src, Remote: a.Dst, Service: cm.TCPService(i.dst.Port()), SourcePort: i.src.Port(),
		QPN: bth.QPN(p.qpn), PSN: i.psn, MTU: i.mtu, RetryCount: p.retry, RNRRetry: p.rnrRetry,
		FlowControl: p.flow, SRQ: p.srq, AckTimeout: defaultAckTimeout, FlowLabel: a.FlowLabel,
		TrafficClass: a.TrafficClass, SL: a.PCP, HopLimit: a.HopLimit, PrivateData: p.private,
	}
	if i.ackTimeout != 0 {
		c.AckTimeout = i.ackTimeout
	}
	if i.qpType == qpUC {
		c.Transport = cm.UC
		return c
	}
	c.ResponderResources, c.InitiatorDepth = p.responder, p.initiator
	return c
}

// listen starts to accept requests.
func (q *command) listen(_ cm.Time, m *cm.CM) ([]byte, syscall.Errno) {
	i, no := q.id()
	backlog := q.in.U32()
	switch {
	case no != 0:
		return nil, no
	case i.space == psIB || i.state != idle:
		return nil, syscall.EINVAL
	}
	if backlog == 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	if i.bound { // an ID that listens does not share its port
		if no := i.conflict(i.src, false); no != 0 {
			return nil, no
		}
	} else {
		if no := i.bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); no != 0 {
			return nil, no
		}
	}
	p := cm.ListenParams{Service: cm.TCPService(i.src.Port()), Family: i.family(i.src.Addr()),
		Backlog: int(backlog)}
	if i.datagram() {
		p.Service = cm.UDPService(i.src.Port())
	}
	if !i.dev.anyOf(i.src.Addr()) {
		p.Local = bth.GIDFromAddr(i.src.Addr())
	}
	l, err := m.Listen(p)
	if err != nil {
		return nil, errno(err)
	}
	i.state, i.listener, i.service = listening, l, p.Service
	inside.HandleListener(i.dev.dev, l, i.offer)
	q.listening = i
	return nil, 0
}

// announce tells the node service, if there is one, that the ID listens. If another program does,
// the ID stops.
func (i *id) announce() syscall.Errno {
	failed := inside.Announce(i.dev.dev, i.service)
	no := i.dev.do(func(now cm.Time, m *cm.CM) syscall.Errno {
		switch {
		case failed == nil && !i.dead:
			i.announced = true
		case failed == nil:
			i.withdraw()
		case !i.dead:
			i.unlisten(now, m)
			i.state = idle
		}
		return 0
	})
	if failed != nil {
		no = errno(failed)
	}
	return no
}

// withdraw tells the node service that the ID does not listen any more. It does not wait.
func (i *id) withdraw() {
	dev, service := i.dev.dev, i.service
	i.dev.busy.Go(func() { inside.Withdraw(dev, service) })
}

// unlisten ends the listener. Owner only.
func (i *id) unlisten(now cm.Time, m *cm.CM) {
	_ = m.Unlisten(now, i.listener)
	inside.HandleListener(i.dev.dev, i.listener, nil)
	if i.announced {
		i.announced = false
		i.withdraw()
	}
}

// accept answers a request. Without parameters it confirms the peer's response: the program's QP is
// ready.
func (q *command) accept(now cm.Time, m *cm.CM) ([]byte, syscall.Errno) {
	uid := q.in.U64()
	p := q.in.connParam()
	i, no := q.id()
	switch {
	case no != 0:
		return nil, no
	case !p.valid && i.response != nil:
		if err := m.Ready(now, i.comm, nil); err != nil {
			return nil, errno(err)
		}
		i.up = true
		return nil, 0
	case !p.valid || i.state != requested:
		return nil, syscall.EINVAL
	}
	if err := i.reply(now, m, &p); err != nil {
		_ = i.decline(now, m, cm.ReasonConsumer, nil) // as the kernel does
		return nil, errno(err)
	}
	i.uid, i.state, i.qpn = uid, connected, p.qpn
	return nil, 0
}

// reply accepts the request.
func (i *id) reply(now cm.Time, m *cm.CM, p *connParam) error {
	if i.datagram() {
		if p.qkey == 0 {
			p.qkey = udpQKey
		}
		return m.ReplySIDR(now, i.comm, &cm.SIDRReply{QPN: bth.QPN(p.qpn), QKey: bth.QKey(p.qkey),
			PrivateData: p.private})
	}
	return m.Accept(now, i.comm, &cm.AcceptParams{
		QPN: bth.QPN(p.qpn), PSN: i.psn,
		ResponderResources: min(p.responder, i.request.InitiatorDepth),
		InitiatorDepth:     min(p.initiator, i.request.ResponderResources),
		RNRRetry:           p.rnrRetry, FlowControl: p.flow, SRQ: p.srq, PrivateData: p.private,
	})
}

// reject refuses a request, or a response.
func (q *command) reject(now cm.Time, m *cm.CM) ([]byte, syscall.Errno) {
	i, no := q.id()
	n, reason := q.in.U8(), cm.ReasonConsumer
	if q.in.U8() == rejVendor {
		reason = cm.ReasonVendorOption
	}
	q.in.Skip(2)
	private := q.in.Bytes(privateSize)[:n]
	if no != 0 {
		return nil, no
	}
	return nil, errno(i.decline(now, m, reason, private))
}

// decline refuses a request, or a response.
func (i *id) decline(now cm.Time, m *cm.CM, reason cm.Reason, private []byte) error {
	if i.request != nil && i.datagram() {
		return m.ReplySIDR(now, i.comm, &cm.SIDRReply{Status: cm.SIDRRejected,
			PrivateData: private})
	}
	return m.Reject(now, i.comm, reason, nil, private)
}

// disconnect ends a connection. If the peer has ended it already, there is nothing to do, nor for
// IDs that have none, if they are in use: programs end datagram IDs in the same way.
func (q *command) disconnect(now cm.Time, m *cm.CM) ([]byte, syscall.Errno) {
	i, no := q.id()
	switch {
	case no != 0:
		return nil, no
	case i.state < listening:
		return nil, syscall.EINVAL
	case i.state == connected && !i.datagram():
		_ = m.Disconnect(now, i.comm, nil)
	}
	return nil, 0
}

// notify tells the connection manager that data has come in.
func (q *command) notify(now cm.Time, m *cm.CM) ([]byte, syscall.Errno) {
	i, no := q.id()
	switch {
	case no != 0:
		return nil, no
	case i.comm == 0 || q.in.U32() != commEst:
		return nil, syscall.EINVAL
	}
	m.CommEstablished(now, i.comm)
	return nil, 0
}

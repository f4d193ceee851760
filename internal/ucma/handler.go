package ucma

import (
	"net/netip"
	"syscall"

	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/roce/cm"
)

// offer handles a request to a listener: it creates an ID and reports it to the program.
func (i *id) offer(now cm.Time, m *cm.CM, e cm.Event) {
	r := e.Request
	if a := i.src.Addr(); a.IsLoopback() && i.dev.anyOf(a) {
		if _, own := i.dev.gid(r.Addr.Remote.Addr()); !own {
			i.refuse(now, m, e.ID)
			return
		}
	}
	if largest := i.dev.dev.Info().ActiveMTU; !i.datagram() && r.MTU > largest {
		reason, info := cm.RejectMTU(largest)
		_ = m.Reject(now, e.ID, reason, info, nil)
		return
	}
	n, no := i.file.newID(i.space, i.qpType)
	if no != 0 {
		_ = m.Abort(now, e.ID)
		return
	}
	if r.Transport == cm.UC && !i.datagram() {
		n.qpType = qpUC
	}
	n.state, n.comm, n.request, n.mtu = requested, e.ID, r, r.MTU
	n.src = netip.AddrPortFrom(r.Addr.Local.Addr(), r.Service.Port())
	n.dst = netip.AddrPortFrom(r.Addr.Remote.Addr(), r.Source.Port())
	n.tos = r.TrafficClass
	inside.HandleConn(i.dev.dev, e.ID, r.Addr.GIDPair, nil, n.onEvent)
	// The program sees the depths from its own side: what the peer starts, it must accept.
	i.push(event{kind: eventConnectRequest, opened: n, conn: connParam{qpn: uint32(r.QPN),
		private: e.PrivateData, srq: r.SRQ, responder: r.InitiatorDepth,
		initiator: r.ResponderResources, flow: r.FlowControl, retry: r.RetryCount,
		rnrRetry: r.RNRRetry}, ud: datagramParam{private: e.PrivateData}})
}

// refuse answers a request as if nobody listened.
func (i *id) refuse(now cm.Time, m *cm.CM, c cm.CommID) {
	if i.datagram() {
		_ = m.ReplySIDR(now, c, &cm.SIDRReply{Status: cm.SIDRUnsupportedService})
		return
	}
	_ = m.Reject(now, c, cm.ReasonInvalidServiceID, nil, nil)
}

// onEvent handles an event of a connection or lookup.
func (i *id) onEvent(_ cm.Time, _ *cm.CM, e cm.Event) {
	if i.dead {
		return
	}
	var v event
	switch e.Kind {
	case cm.EventConnectResponse, cm.EventSIDRResponse, cm.EventRejected:
		// Other messages have private data as well, but the kernel does not report it.
		v.conn.private, v.ud.private = e.PrivateData, e.PrivateData
	}
	switch e.Kind {
	case cm.EventConnectResponse:
		r := e.Response
		i.response = r
		v.kind = eventConnectResponse
		v.conn = connParam{qpn: uint32(r.QPN), private: e.PrivateData, srq: r.SRQ,
			responder: r.InitiatorDepth, initiator: r.ResponderResources, flow: r.FlowControl,
			rnrRetry: r.RNRRetry}
	case cm.EventSIDRResponse:
		v.kind, v.ud.qpn, v.ud.qkey = eventEstablished, uint32(e.Reply.QPN), uint32(e.Reply.QKey)
		v.ud.to = i.destination()
		if e.Reply.Status != cm.SIDRSuccess {
			v.kind, v.status = eventUnreachable, int32(e.Reply.Status)
		}
	case cm.EventEstablished:
		i.up = true
		v.kind = eventEstablished
	case cm.EventRejected:
		v.kind, v.status = eventRejected, int32(e.Reason)
	case cm.EventUnreachable:
		v.kind, v.status = eventUnreachable, -int32(syscall.ETIMEDOUT)
	case cm.EventDisconnected:
		v.kind = eventDisconnected
	case cm.EventClosed:
		i.comm = 0
		if !i.up {
			return
		}
		v.kind = eventTimeWaitExit
	default:
		return
	}
	// Until the program has accepted a request, it has no name for the ID.
	if i.request == nil || i.uid != 0 {
		i.push(v)
	}
}

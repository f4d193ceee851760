package roce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// QKeyUDP is the Q_Key that programs on rdma_cm use for datagrams (RDMA_UDP_QKEY).
const QKeyUDP QKey = 0x01234567

// UDPeer is a datagram QP that ResolveUD has found.
type UDPeer struct {
	AH          *AH // close it when it is no longer needed
	QPN         QPN
	QKey        QKey
	PrivateData []byte // of the listener, followed by zeros
}

// ResolveUD asks the listener at addr (ListenUD, or a program on rdma_cm) for its datagram QP (IBA
// 12.11, SIDR). private is for the listener: at most 180 bytes. The errors are those of Dial.
func (d *Device) ResolveUD(ctx context.Context, addr netip.AddrPort, private []byte) (
	*UDPeer, error) {
	if err := dialable(addr); err != nil {
		return nil, err
	}
	remote := bth.GIDFromAddr(addr.Addr())
	ah, err := d.CreateAH(ctx, AHAttr{Remote: remote})
	if err != nil {
		return nil, err
	}
	peer, err := d.askUD(ctx, ah, addr.Port(), private)
	if err != nil {
		_ = ah.Close()
		return nil, err
	}
	return peer, nil
}

func (d *Device) askUD(ctx context.Context, ah *AH, port uint16, private []byte) (*UDPeer, error) {
	path := ah.Path()
	gids := path.GIDs()
	var id *cmID
	var err error
	gone := d.do(func(now qp.Time) {
		var comm cm.CommID
		comm, err = d.gsi.cm.Resolve(cm.Time(now), &cm.SIDRParams{
			Local: gids.Local, Remote: gids.Remote, Service: cm.UDPService(port),
			SourcePort: madSourcePort, PKey: d.pkeys[0], PrivateData: private,
		})
		if err != nil {
			return
		}
		id = d.gsi.add(comm, path)
		d.gsi.transmit(now)
	})
	if err := errors.Join(gone, err); err != nil {
		return nil, err
	}
	e, err := d.next(ctx, id)
	if err == nil {
		err = refusal(&e, cm.EventSIDRResponse)
	}
	if err != nil {
		d.giveUp(nil, id)
		return nil, err
	}
	if e.Reply.Status != cm.SIDRSuccess {
		return nil, refusalUD(&e)
	}
	return &UDPeer{AH: ah, QPN: e.Reply.QPN, QKey: e.Reply.QKey, PrivateData: e.PrivateData}, nil
}

// sidrReasons maps the statuses of SIDR to the reasons of refused connections (IBA 12.11.2,
// 12.6.7.2).
var sidrReasons = map[cm.SIDRStatus]RejectReason{
	cm.SIDRUnsupportedService: RejectNoListener,
	cm.SIDRRejected:           RejectConsumer,
	cm.SIDRNoQP:               cm.ReasonNoQP,
	cm.SIDRRedirect:           cm.ReasonCMRedirect,
	cm.SIDRUnsupportedVersion: cm.ReasonInvalidClassVersion,
}

// refusalUD returns the error of a refused SIDR request. It has the form of a refused connection.
func refusalUD(e *cm.Event) error {
	reason, known := sidrReasons[e.Reply.Status]
	if !known {
		return fmt.Errorf("%w: %v", ErrRefused, e.Reply.Status)
	}
	return &RejectError{Reason: reason, PrivateData: e.PrivateData}
}

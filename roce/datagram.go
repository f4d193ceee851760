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

// QKeyUDP is the Q_Key that programs on rdma_cm use for their datagram QPs (RDMA_UDP_QKEY).
const QKeyUDP QKey = 0x01234567

// UDPeer is a datagram QP that ResolveUD found.
type UDPeer struct {
	AH          *AH // close it when done
	QPN         QPN
	QKey        QKey
	PrivateData []byte
}

// ResolveUD asks who listens for datagrams at addr (ListenUD, or a program on rdma_cm) for its QP (IBA 12.11, SIDR).
// private has 180 bytes at most. Errors are as Dial's.
func (d *Device) ResolveUD(ctx context.Context, addr netip.AddrPort, private []byte) (*UDPeer, error) {
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
	var talk *dialogue
	var err error
	gone := d.do(func(now qp.Time) {
		g := d.gsi
		var id cm.CommID
		id, err = g.cm.Resolve(cm.Time(now), &cm.SIDRParams{
			Local: path.GIDs().Local, Remote: path.GIDs().Remote, Service: cm.UDPService(port), SourcePort: madSourcePort, PKey: DefaultPKey, PrivateData: private,
		})
		if err != nil {
			return
		}
		talk = newDialogue(id, path.GIDs())
		g.conns[id] = talk
		g.holdWay(talk, path)
		g.transmit(now)
	})
	if err := errors.Join(gone, err); err != nil {
		return nil, err
	}
	e, err := d.next(ctx, talk)
	if err == nil {
		err = refusal(&e, cm.EventSIDRResponse)
	}
	if err != nil {
		d.hangUp(nil, talk)
		return nil, err
	}
	if e.Reply.Status != cm.SIDRSuccess {
		return nil, refusalUD(&e)
	}
	return &UDPeer{AH: ah, QPN: e.Reply.QPN, QKey: e.Reply.QKey, PrivateData: e.PrivateData}, nil
}

// sidrReasons are the reasons by which a connection would be refused for the same cause (IBA 12.11.2, 12.6.7.2).
var sidrReasons = map[cm.SIDRStatus]RejectReason{
	cm.SIDRUnsupportedService: RejectNoListener,
	cm.SIDRRejected:           RejectConsumer,
	cm.SIDRNoQP:               cm.ReasonNoQP,
	cm.SIDRRedirect:           cm.ReasonCMRedirect,
	cm.SIDRUnsupportedVersion: cm.ReasonInvalidClassVersion,
}

// refusalUD makes the same error of a datagram listener's no as a connection's would be.
func refusalUD(e *cm.Event) error {
	reason, known := sidrReasons[e.Reply.Status]
	if !known {
		return fmt.Errorf("%w: %v", ErrRefused, e.Reply.Status)
	}
	return &RejectError{Reason: reason, PrivateData: e.PrivateData}
}

package service

import (
	"encoding/binary"
	"net/netip"

	"github.com/gorxe/gorxe/roce/cm"
)

// listener is a range of service IDs on which a member listens.
type listener struct {
	slot     uint8
	id, mask uint64
	addr     netip.Addr // the only address; the zero Addr: all addresses
}

// matches reports whether requests for a service ID at an address go to the listener.
func (l *listener) matches(id uint64, addr netip.Addr) bool {
	return (l.id^id)&l.mask == 0 && (!l.addr.IsValid() || l.addr == addr)
}

// overlaps reports whether a request could go to both listeners.
func (l *listener) overlaps(o *listener) bool {
	return (l.id^o.id)&l.mask&o.mask == 0 &&
		(!l.addr.IsValid() || !o.addr.IsValid() || l.addr == o.addr)
}

// Offsets in MADs of connection management (IBA 12.6). The other messages have the communication
// IDs of the sender and of the receiver in this order.
const (
	offSender   = cm.MADHeaderLen     // SIDR_REP: the request ID
	offReceiver = cm.MADHeaderLen + 4 // communication ID
	offService  = cm.MADHeaderLen + 8 // REQ, SIDR_REQ
	slotShift   = 24                  // of the slot in an ID
)

// route returns the slot that gets a MAD to an address. It is 0 for MADs that the service itself
// handles, and for those that are not valid.
func route(b []byte, dst netip.Addr, listeners []listener) uint8 {
	m, err := cm.ParseMAD(b)
	if err != nil {
		return 0
	}
	switch m.Attribute() {
	case cm.AttrREQ, cm.AttrSIDRREQ:
		id := binary.BigEndian.Uint64(m[offService:])
		for i := range listeners {
			if l := &listeners[i]; l.matches(id, dst) {
				return l.slot
			}
		}
		return 0
	case cm.AttrSIDRREP:
		return uint8(binary.BigEndian.Uint32(m[offSender:]) >> slotShift)
	}
	return uint8(binary.BigEndian.Uint32(m[offReceiver:]) >> slotShift)
}

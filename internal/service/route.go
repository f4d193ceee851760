package service

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/roce/cm"
)

// listeners are the listeners on each service ID. A map, because the members of one user may have
// 65,536 of them, and each request is looked up.
type listeners map[uint64][]listener

// listener is a member that listens on a service ID.
type listener struct {
	slot uint8
	addr netip.Addr // the only address; the zero Addr: all addresses
}

// gets reports whether requests to an address go to the listener.
func (l listener) gets(addr netip.Addr) bool { return !l.addr.IsValid() || l.addr == addr }

// add adds a listener, unless a request could go to it and to another one.
func (s listeners) add(id uint64, l listener) error {
	for _, o := range s[id] {
		if l.gets(o.addr) || o.gets(l.addr) {
			return driver.ErrListening
		}
	}
	s[id] = append(s[id], l)
	return nil
}

// remove removes the listener of a member on a service ID.
func (s listeners) remove(id uint64, slot uint8) bool {
	k := slices.IndexFunc(s[id], func(l listener) bool { return l.slot == slot })
	if k < 0 {
		return false
	}
	if s[id] = slices.Delete(s[id], k, k+1); len(s[id]) == 0 {
		delete(s, id)
	}
	return true
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
func route(b []byte, dst netip.Addr, all listeners) uint8 {
	m, err := cm.ParseMAD(b)
	if err != nil {
		return 0
	}
	switch m.Attribute() {
	case cm.AttrREQ, cm.AttrSIDRREQ:
		for _, l := range all[binary.BigEndian.Uint64(m[offService:])] {
			if l.gets(dst) {
				return l.slot
			}
		}
		return 0
	case cm.AttrSIDRREP:
		return uint8(binary.BigEndian.Uint32(m[offSender:]) >> slotShift)
	}
	return uint8(binary.BigEndian.Uint32(m[offReceiver:]) >> slotShift)
}

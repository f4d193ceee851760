package roce

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// slotRange are the numbers that a Device on a node service may use. Their top byte is the slot of
// the program, by which the service and the kernel find the Device that a packet is for.
type slotRange struct {
	qpns qp.QPNRange
	ids  cm.IDRange
}

func rangeOf(slot uint8) slotRange {
	return slotRange{
		qpns: qp.QPNRange{First: bth.QPN(slot) << 16, Last: bth.QPN(slot)<<16 | 0xffff},
		ids:  cm.IDRange{First: cm.CommID(slot) << 24, Last: cm.CommID(slot)<<24 | 0xffffff},
	}
}

// membership is the connection of a Device with a node service: as a member, or as the service's
// own device. The zero value is that of other devices.
type membership struct {
	member  driver.Member // nil: there is no service
	forward func(p *bth.Packet) bool

	mu      sync.Mutex
	listens map[cm.ServiceID]int // listeners of each announced service ID
}

// joinedBy sets the membership of a Device on a port, and returns the numbers that it may use.
func (s *membership) joinedBy(port driver.Port, host inside.ServiceHost) slotRange {
	s.listens = map[cm.ServiceID]int{}
	if host != nil {
		s.member, s.forward = host, host.Forward
	} else if m, ok := driver.Find[driver.Member](port); ok && m.Slot() != 0 {
		s.member = m
	} else {
		return slotRange{}
	}
	return rangeOf(s.member.Slot())
}

// announce tells the service that the Device listens on a service ID.
func (s *membership) announce(id cm.ServiceID) error {
	if s.member == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listens[id] == 0 {
		err := s.member.Listen(uint64(id))
		if errors.Is(err, driver.ErrListening) {
			return fmt.Errorf("%w: another program of this interface listens on port %d: "+
				"choose another port", ErrListening, id.Port())
		}
		if err != nil {
			return fmt.Errorf("roce: listen through the node service: %w", err)
		}
	}
	s.listens[id]++
	return nil
}

// withdraw ends a call of announce.
func (s *membership) withdraw(id cm.ServiceID) {
	if s.member == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listens[id]--; s.listens[id] == 0 {
		delete(s.listens, id)
		s.member.Unlisten(uint64(id))
	}
}

// wills are the disconnect requests of a member's connections. The service sends them if the
// program dies, so that its peers do not wait for a timeout. Owner only.
type wills struct {
	changed []willChange
	encoder frame.Encoder
}

// willChange says that a connection was established, or is no longer.
type willChange struct {
	id          cm.CommID
	established bool
}

// note is called when a connection is established, and when it is no longer.
func (w *wills) note(id cm.CommID, established bool) {
	w.changed = append(w.changed, willChange{id, established})
}

// deposit tells the service about changes of wills.
func (g *gsi) deposit() {
	w := &g.wills
	if len(w.changed) == 0 {
		return
	}
	for _, c := range w.changed {
		var dreq []byte
		if c.established {
			dreq = g.will(c.id)
		}
		g.dev.service.member.Will(uint32(c.id), dreq)
	}
	w.changed = w.changed[:0]
}

// will returns a frame with a disconnect request; nil if the connection has ended.
func (g *gsi) will(id cm.CommID) []byte {
	var mad cm.MAD
	to, err := g.cm.Farewell(id, &mad)
	if err != nil {
		return nil
	}
	path := g.paths.find(to.GIDPair)
	if path == nil {
		return nil
	}
	b := make([]byte, qp.MinBuffer+cm.MADLen)
	n, netLen := g.put(b, path, &to, (*[cm.MADLen]byte)(&mad))
	b = b[:n+bth.ICRCLen]
	g.wills.encoder.SourcePort = bth.Port
	g.wills.encoder.Finish(b, netLen)
	return b
}

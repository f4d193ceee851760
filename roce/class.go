package roce

import (
	"fmt"

	"github.com/gorxe/gorxe/qp"
)

// NumClasses is the number of traffic classes: see PathOptions.Class.
const NumClasses = 8

// ClassConfig tells how the Device sends the packets of a traffic class: see WithClasses. The zero
// value is the default.
type ClassConfig struct {
	Order ClassOrder
	// Preempt tells when a QP of this class may be preempted by a higher class: 0 after any packet,
	// n > 0 when n bytes of payload were sent since the last preemption point and at the end of a
	// message, PreemptAtEnd only at the end of a message.
	Preempt int
	// Rate limits the class, in bytes of frames per second from the Ethernet header to the ICRC,
	// MinRate to MaxRate. 0 means no limit.
	Rate uint64
	// Burst is what the class may send at once after a pause, in bytes, at most MaxBurst. It is at
	// least one frame.
	Burst int
}

// Check reports whether the values are in range.
//
// Errors: ErrInvalidAttr.
func (c *ClassConfig) Check() error {
	e := c.engine()
	return e.Check()
}

func (c *ClassConfig) engine() qp.ClassConfig {
	return qp.ClassConfig{Order: qp.Order(c.Order), Preempt: c.Preempt, Rate: c.Rate,
		Burst: c.Burst}
}

// ClassOrder is the order in which the QPs of a traffic class send.
type ClassOrder uint8

// The orders.
const (
	RoundRobin ClassOrder = iota // one QP after the other, 16 KiB or one work request each
	FIFO                         // the oldest work request that can be sent
)

// String returns "round robin" or "FIFO".
func (o ClassOrder) String() string { return qp.Order(o).String() }

// PreemptAtEnd is the value of ClassConfig.Preempt for a class whose messages are not preempted.
const PreemptAtEnd = -1

// Limits of the rates and bursts of classes and QPs.
const (
	MinRate  = 1_000   // bytes per second
	MaxRate  = 1 << 40 // bytes per second
	MaxBurst = 1 << 30 // bytes
)

// ClassCounters are the counters of a traffic class: Counters.Classes.
type ClassCounters struct {
	SentPkts    uint64
	SentBytes   uint64 // payload
	Preemptions uint64 // messages interrupted by packets of a higher class
}

// ecnMask selects the ECN bits of the IPv4 TOS or IPv6 traffic class; the DSCP is above them.
const (
	ecnMask   = 3
	dscpShift = 2
)

// Limits of the fields of a ClassMap.
const (
	maxDSCP = 1<<6 - 1
	maxPCP  = 1<<3 - 1
)

// ClassMap says how the packets of each traffic class are marked for the network: see
// PathOptions.Class and WithClassMap. Several classes may have the same DSCP.
type ClassMap struct {
	// DSCP is the upper six bits of the IPv4 TOS or IPv6 traffic class, 0 to 63. Congestion
	// control uses the other two (ECN).
	DSCP [NumClasses]uint8 `json:"dscp"`
	// PCP is the priority in the VLAN tag, 0 to 7, of packets that have a tag. 0 leaves the
	// priority that the Network reports. On an interface of the kernel that is a VLAN device, the
	// kernel writes the tag: set its priority there (ip link set DEV type vlan egress-qos-map 0:5).
	PCP [NumClasses]uint8 `json:"pcp"`
}

// DefaultClassMap returns the map of a Device without WithClassMap: class c has DSCP 8*c, which
// most NICs and switches map to priority c, and PCP c.
func DefaultClassMap() (m ClassMap) {
	for c := range NumClasses {
		m.DSCP[c], m.PCP[c] = uint8(8*c), uint8(c)
	}
	return m
}

// Class returns the class of packets with a DSCP and a PCP: the lowest class that has both,
// otherwise the lowest class with the DSCP, otherwise the upper three bits of the DSCP.
func (m ClassMap) Class(dscp, pcp uint8) int {
	class := -1
	for c := range NumClasses {
		switch {
		case m.DSCP[c] != dscp:
		case m.PCP[c] == pcp:
			return c
		case class < 0:
			class = c
		}
	}
	if class < 0 {
		return int(dscp&maxDSCP) / 8
	}
	return class
}

// check returns an error if a value does not fit its field.
func (m *ClassMap) check() error {
	for c := range NumClasses {
		if m.DSCP[c] > maxDSCP || m.PCP[c] > maxPCP {
			return fmt.Errorf("%w: class %d has DSCP %d and PCP %d", ErrClassMap, c, m.DSCP[c],
				m.PCP[c])
		}
	}
	return nil
}

// WithDefaultClass sets the traffic class, 1 to 7, of the QPs and address handles of the Device
// that do not choose one. A negative number means class 0. Without this option it is class 0 or,
// for connected QPs, the class that the peer has chosen.
func WithDefaultClass(c int) Option { return func(cfg *config) { cfg.class = c } }

// WithClassMap sets how packets of each traffic class are marked. The default is DefaultClassMap.
func WithClassMap(m ClassMap) Option { return func(c *config) { c.classMap = m } }

// WithClasses sets how the Device sends the packets of each traffic class. Classes have strict
// priority: a class sends only while no higher class can.
func WithClasses(c [NumClasses]ClassConfig) Option { return func(cfg *config) { cfg.classes = c } }

// ClassMap returns how the Device marks packets of each traffic class.
func (d *Device) ClassMap() ClassMap { return d.classMap }

// checkClass returns an error unless c is a class, or negative, which means class 0.
func checkClass(c int) error {
	if c >= NumClasses {
		return fmt.Errorf("%w: %d", ErrClass, c)
	}
	return nil
}

// chosenClass returns the class that this side has chosen for a connection: that of the options,
// otherwise that of the QPConfig or the Device. 0 means none, and a negative number class 0.
func (q *QP) chosenClass(option int) int {
	if option != 0 {
		return option
	}
	return q.class()
}

// marking returns the IPv4 TOS or IPv6 traffic class and the PCP for the options of a path.
func (d *Device) marking(o *PathOptions) (trafficClass, pcp uint8, err error) {
	if err := checkClass(o.Class); err != nil {
		return 0, 0, err
	}
	class := o.Class
	if class == 0 {
		class = d.class
	}
	class = max(class, 0)
	trafficClass = o.TrafficClass
	if trafficClass&^ecnMask == 0 {
		trafficClass |= d.classMap.DSCP[class] << dscpShift
	}
	return trafficClass, d.classMap.PCP[class], nil
}

// adopt sets the traffic class for an accepted QP: that of the peer, unless this side has chosen
// one. The peer's DSCP is used as it is, even if the local map has no such DSCP, because the
// network handles it as the peer expects. Its ECN bits are not used.
func (r *Request) adopt(q *QP, o *PathOptions) {
	if o.Class = q.chosenClass(o.Class); o.Class != 0 {
		return
	}
	dscp := r.req.TrafficClass >> dscpShift
	o.Class = r.dev.classMap.Class(dscp, r.req.SL&maxPCP)
	if o.TrafficClass&^ecnMask == 0 {
		o.TrafficClass |= dscp << dscpShift
	}
}

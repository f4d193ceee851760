package roce

import "github.com/gorxe/gorxe/roce/cm"

// Features is a set of extensions of RoCEv2 that one side of a connection supports: see
// Endpoint.Features. A connection uses those that both sides support. In JSON it is a list of names
// such as "selective-repeat"; names that are not known are ignored.
type Features = cm.Features

// SelectiveRepeat means that an RC QP keeps packets that arrive out of order and tells the sender
// which ones, so that the sender retransmits only those that are missing. Without it the sender
// retransmits everything from the first missing packet on (go-back-N). Only acknowledgments differ
// on the wire: see docs/selective-repeat.md.
const SelectiveRepeat Features = cm.SelectiveRepeat

// WithSelectiveRepeat turns selective repeat off or on for the QPs of the Device. It is on by
// default. A connection uses it if the peer supports it, too: QP.Connect finds out from
// Endpoint.Features, Dial and Accept from the connection manager's messages. Hardware NICs and the
// kernel's rxe do not support it, and connections to them use standard RoCEv2.
//
// Attr.Selective, which QP.Query returns, tells whether a connected QP uses it. QPConfig.GoBackN
// turns it off for one QP.
func WithSelectiveRepeat(on bool) Option {
	return func(c *config) {
		c.features &^= SelectiveRepeat
		if on {
			c.features |= SelectiveRepeat
		}
	}
}

// featuresFor returns the features of a new QP.
func (d *Device) featuresFor(c *QPConfig) Features {
	if c.Type != RC {
		return 0
	}
	f := d.features
	if c.GoBackN {
		f &^= SelectiveRepeat
	}
	return f
}

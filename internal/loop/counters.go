package loop

import "github.com/gorxe/gorxe/frame"

// Counters are the counters of a loop since New. The engine has its own.
type Counters struct {
	RxFrames, RxBytes uint64 // frames taken from the port, and their bytes
	TxFrames, TxBytes uint64 // frames that the port accepted, and bytes built
	TxDropped         uint64 // frames that the port did not accept
	NotLocal          uint64 // packets to an address that is not a local one
	WrongMAC          uint64 // packets whose destination MAC does not belong to the address
	WrongVLAN         uint64 // datagrams of another VLAN than the port's
	BadSource         uint64 // datagrams from an address that cannot be a peer; see Sources
	PortErrors        uint64 // errors of Port.Send and Port.Wait
	Steps, Sleeps     uint64
	Drops             [frame.NumReasons]uint64 // frames that the decoder dropped, by frame.Reason
}

// Counters returns the loop's counters. Owner only.
func (l *Loop) Counters() *Counters { return &l.ctr }

package roce

import (
	"bytes"
	"encoding/json"
	"iter"
	"strconv"

	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
)

// Counters are the counters of a Device since it was opened. Those with a counterpart among the
// hardware counters of the kernel's rxe have its name in All. They marshal to a JSON object with
// the names of All as keys.
type Counters struct {
	EngineCounters

	RxFrames, RxBytes uint64 // Ethernet frames received from the port, and their bytes
	TxFrames, TxBytes uint64 // frames accepted by the port, and bytes of frames built
	TxDropped         uint64 // frames that the port did not accept
	DropNotOurs       uint64 // received frames whose destination is not an address of the interface
	DropMAC           uint64 // received frames whose destination MAC does not belong to the address
	DropVLAN          uint64 // received datagrams of another VLAN
	DropSource        uint64 // received datagrams from an address that cannot be a peer
	PortErrors        uint64 // errors returned by the port
	EventsDropped     uint64 // asynchronous events lost because Events was not read
	Steps, Waits      uint64 // steps of the loop, and how often it slept

	GSIReceived, GSISent uint64     // datagrams of QP1
	GSIRefused           uint64     // received by QP1, but not a message of the connection manager
	GSINoPath            uint64     // messages not sent because the path to the peer was discarded
	KeepAlivesSent       uint64     // see ConnectOptions.KeepAlive
	KeepAlivesFailed     uint64     // QPs whose peer did not answer
	CM                   CMCounters // of the connection manager

	Classes [NumClasses]ClassCounters // what each traffic class has sent

	Drops [frame.NumReasons]uint64 // frames dropped by the decoder, by DropReason
	Port  PortStats
}

// Counters returns all counters. It costs a round trip to the device's thread. After Close it
// returns the last values.
func (d *Device) Counters() Counters {
	var c Counters
	if d.do(func(qp.Time) { c = d.counters() }) != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.end != nil {
			c = *d.end
		}
		return c
	}
	c.EventsDropped = d.eventDrops.Load()
	return c
}

// counters copies the counters. Owner only.
func (d *Device) counters() Counters {
	n, g := d.loop.Counters(), d.gsi
	c := Counters{
		EngineCounters: EngineCounters(*d.eng.Counters()),
		RxFrames:       n.RxFrames, RxBytes: n.RxBytes,
		TxFrames: n.TxFrames, TxBytes: n.TxBytes, TxDropped: n.TxDropped,
		GSIReceived: g.ctr.received, GSISent: g.ctr.sent, GSIRefused: g.ctr.refused,
		GSINoPath: g.ctr.noPath, CM: CMCounters(*g.cm.Counters()),
		KeepAlivesSent: g.alive.sent, KeepAlivesFailed: g.alive.failed,
		DropNotOurs: n.NotLocal, DropMAC: n.WrongMAC, DropVLAN: n.WrongVLAN,
		DropSource: n.BadSource, PortErrors: n.PortErrors, Steps: n.Steps, Waits: n.Sleeps,
		Drops: n.Drops,
	}
	for i, class := range d.eng.ClassCounters() {
		c.Classes[i] = ClassCounters(class)
	}
	c.DropPKey += g.ctr.badPKey
	c.DropQKey += g.ctr.badQKey
	if _, open := d.loop.PortInfo(); open {
		c.Port = PortStats(d.stats())
	}
	return c
}

// All returns an iterator over the names and values of all counters, in a fixed order.
func (c Counters) All() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for _, n := range counterNames {
			if !yield(n.name, *n.of(&c)) {
				return
			}
		}
		for i := range c.Classes {
			for _, n := range classCounterNames {
				if !yield("class"+strconv.Itoa(i)+"_"+n.name, *n.of(&c.Classes[i])) {
					return
				}
			}
		}
		for n, v := range c.CM.All() {
			if !yield("cm_"+n, v) {
				return
			}
		}
		for r := frame.ReasonOK + 1; r < frame.NumReasons; r++ {
			if !yield("drop_frame_"+reasonName(r), c.Drops[r]) {
				return
			}
		}
	}
}

// Get returns the counter that All names so, or 0 if there is none.
func (c Counters) Get(name string) uint64 {
	for n, v := range c.All() {
		if n == name {
			return v
		}
	}
	return 0
}

// MarshalJSON implements json.Marshaler.
func (c Counters) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	sep := byte('{')
	for n, v := range c.All() {
		key, err := json.Marshal(n)
		if err != nil {
			return nil, err
		}
		b.WriteByte(sep)
		b.Write(key)
		b.WriteByte(':')
		b.WriteString(strconv.FormatUint(v, 10))
		sep = ','
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// reasonName converts the text of a reason to the name of a counter.
func reasonName(r frame.Reason) string {
	b := []byte(r.String())
	for i, ch := range b {
		switch {
		case ch >= 'A' && ch <= 'Z':
			b[i] = ch + 'a' - 'A'
		case (ch < 'a' || ch > 'z') && (ch < '0' || ch > '9'):
			b[i] = '_'
		}
	}
	return string(b)
}

// classCounterNames lists the counters of a traffic class.
var classCounterNames = []struct {
	name string
	of   func(*ClassCounters) *uint64
}{
	{"sent_pkts", func(c *ClassCounters) *uint64 { return &c.SentPkts }},
	{"sent_bytes", func(c *ClassCounters) *uint64 { return &c.SentBytes }},
	{"preemptions", func(c *ClassCounters) *uint64 { return &c.Preemptions }},
}

// counterNames lists the counters in the order of All. The first group has the names that rxe uses
// (rdma statistic show).
var counterNames = []struct {
	name string
	of   func(*Counters) *uint64
}{
	{"sent_pkts", func(c *Counters) *uint64 { return &c.SentPkts }},
	{"rcvd_pkts", func(c *Counters) *uint64 { return &c.RcvdPkts }},
	{"duplicate_request", func(c *Counters) *uint64 { return &c.DuplicateRequest }},
	{"out_of_seq_request", func(c *Counters) *uint64 { return &c.OutOfSeqRequest }},
	{"rcvd_rnr_err", func(c *Counters) *uint64 { return &c.RcvdRNR }},
	{"send_rnr_err", func(c *Counters) *uint64 { return &c.SentRNR }},
	{"rcvd_seq_err", func(c *Counters) *uint64 { return &c.RcvdSeqNAK }},
	{"send_seq_err", func(c *Counters) *uint64 { return &c.SentSeqNAK }},
	{"rcvd_err_nak", func(c *Counters) *uint64 { return &c.RcvdErrNAK }},
	{"send_err_nak", func(c *Counters) *uint64 { return &c.SentErrNAK }},
	{"retry_exceeded_err", func(c *Counters) *uint64 { return &c.RetryExceeded }},
	{"retry_rnr_exceeded_err", func(c *Counters) *uint64 { return &c.RNRRetryExceeded }},
	{"completer_retry_err", func(c *Counters) *uint64 { return &c.AckTimeouts }},
	{"send_err", func(c *Counters) *uint64 { return &c.TxDropped }},

	{"sent_bytes", func(c *Counters) *uint64 { return &c.SentBytes }},
	{"rcvd_bytes", func(c *Counters) *uint64 { return &c.RcvdBytes }},
	{"sent_acks", func(c *Counters) *uint64 { return &c.SentAcks }},
	{"sent_sel_acks", func(c *Counters) *uint64 { return &c.SentSelAcks }},
	{"held_pkts", func(c *Counters) *uint64 { return &c.HeldPkts }},
	{"placed_pkts", func(c *Counters) *uint64 { return &c.PlacedPkts }},
	{"reorder_drops", func(c *Counters) *uint64 { return &c.ReorderDrops }},
	{"parked_bytes", func(c *Counters) *uint64 { return &c.ParkedBytes }},
	{"retransmits", func(c *Counters) *uint64 { return &c.Retransmits }},
	{"spurious_retransmits", func(c *Counters) *uint64 { return &c.SpuriousRetransmits }},
	{"implied_nak", func(c *Counters) *uint64 { return &c.ImpliedNAK }},
	{"probes", func(c *Counters) *uint64 { return &c.Probes }},
	{"rcvd_ecn_marked", func(c *Counters) *uint64 { return &c.MarkedPkts }},
	{"sent_cnps", func(c *Counters) *uint64 { return &c.SentCNPs }},
	{"rcvd_cnps", func(c *Counters) *uint64 { return &c.RcvdCNPs }},
	{"timers", func(c *Counters) *uint64 { return &c.Timers }},
	{"completions", func(c *Counters) *uint64 { return &c.Completions }},
	{"completion_errors", func(c *Counters) *uint64 { return &c.CompletionErrors }},
	{"flushed", func(c *Counters) *uint64 { return &c.Flushed }},

	{"bad_rkey", func(c *Counters) *uint64 { return &c.BadRKey }},
	{"out_of_window", func(c *Counters) *uint64 { return &c.OutOfWindow }},

	{"drop_no_qp", func(c *Counters) *uint64 { return &c.DropNoQP }},
	{"drop_qp_type", func(c *Counters) *uint64 { return &c.DropType }},
	{"drop_peer_address", func(c *Counters) *uint64 { return &c.DropAddress }},
	{"drop_not_ours", func(c *Counters) *uint64 { return &c.DropNotOurs }},
	{"drop_mac", func(c *Counters) *uint64 { return &c.DropMAC }},
	{"drop_vlan", func(c *Counters) *uint64 { return &c.DropVLAN }},
	{"drop_source", func(c *Counters) *uint64 { return &c.DropSource }},
	{"drop_pkey", func(c *Counters) *uint64 { return &c.DropPKey }},
	{"drop_qkey", func(c *Counters) *uint64 { return &c.DropQKey }},
	{"drop_no_recv", func(c *Counters) *uint64 { return &c.DropNoRecv }},
	{"drop_length", func(c *Counters) *uint64 { return &c.DropLength }},
	{"drop_sequence", func(c *Counters) *uint64 { return &c.DropSequence }},
	{"drop_access", func(c *Counters) *uint64 { return &c.DropAccess }},
	{"drop_ghost", func(c *Counters) *uint64 { return &c.DropGhost }},
	{"drop_replay", func(c *Counters) *uint64 { return &c.DropReplay }},
	{"drop_multicast", func(c *Counters) *uint64 { return &c.DropMulticast }},

	{"gsi_received", func(c *Counters) *uint64 { return &c.GSIReceived }},
	{"gsi_sent", func(c *Counters) *uint64 { return &c.GSISent }},
	{"gsi_refused", func(c *Counters) *uint64 { return &c.GSIRefused }},
	{"gsi_no_way", func(c *Counters) *uint64 { return &c.GSINoPath }},
	{"keepalives_sent", func(c *Counters) *uint64 { return &c.KeepAlivesSent }},
	{"keepalives_failed", func(c *Counters) *uint64 { return &c.KeepAlivesFailed }},

	{"rx_frames", func(c *Counters) *uint64 { return &c.RxFrames }},
	{"rx_bytes", func(c *Counters) *uint64 { return &c.RxBytes }},
	{"tx_frames", func(c *Counters) *uint64 { return &c.TxFrames }},
	{"tx_bytes", func(c *Counters) *uint64 { return &c.TxBytes }},
	{"port_rx_dropped", func(c *Counters) *uint64 { return &c.Port.RxDropped }},
	{"port_tx_dropped", func(c *Counters) *uint64 { return &c.Port.TxDropped }},
	{"port_tx_runs", func(c *Counters) *uint64 { return &c.Port.TxRuns }},
	{"port_kicks", func(c *Counters) *uint64 { return &c.Port.Kicks }},
	{"port_waits", func(c *Counters) *uint64 { return &c.Port.Waits }},
	{"port_errors", func(c *Counters) *uint64 { return &c.PortErrors }},
	{"events_lost", func(c *Counters) *uint64 { return &c.EventsLost }},
	{"events_dropped", func(c *Counters) *uint64 { return &c.EventsDropped }},
	{"turns", func(c *Counters) *uint64 { return &c.Steps }},
	{"waits", func(c *Counters) *uint64 { return &c.Waits }},
}

package bench

import (
	"fmt"
	"strings"

	"github.com/gorxe/gorxe/bth"
)

// kind says what transports the messages of a lane.
type kind string

const (
	kindGorxe kind = "gorxe"
	kindBare  kind = "afxdp"      // bare frames on a Port, AF_XDP or in memory
	kindCopy  kind = "afxdp-copy" // the same, and the receiver copies the payloads
	kindTCP   kind = "tcp"
	kindNoTSO kind = "tcp-notso" // TCP without segmentation offload, with segments of the path MTU
	kindUDP   kind = "udp"
	kindRuns  kind = "udp-gso" // runs of UDP packets with a CRC, UDP_SEGMENT to UDP_GRO
)

// packets reports whether the lane counts packets instead of messages.
func (k kind) packets() bool { return k.bare() || k == kindRuns }

// bare reports whether the lane sends frames without a protocol.
func (k kind) bare() bool { return k == kindBare || k == kindCopy }

// test is the pattern of the messages.
type test string

const (
	stream   test = "stream"   // one direction, as fast as possible
	pingpong test = "pingpong" // one message at a time, back and forth
)

// operation is what gorxe measures in a stream.
type operation string

const (
	opWrite operation = "write"
	opRead  operation = "read"
	opSend  operation = "send"
)

// Ports of gorxe.
const (
	portXDP    = "xdp"
	portUDP    = "udp"
	portAuto   = "auto" // as roce.Open selects
	portMemory = "memory"
)

// Names of lanes that are not names of kinds.
const (
	laneLossless    = "lossless"
	laneMemory      = "memory" // bare frames on the link in memory
	laneMemoryCopy  = "memory-copy"
	laneTCPLossless = "tcp-lossless"
)

// Units of figures.
const (
	unitRate    = "Mmsg/s"
	unitBW      = "Gb/s"
	unitLatency = "us"
)

// lane is one competitor of a figure.
type lane struct {
	name string
	kind kind
	loss float64 // share of lost packets in each direction

	op   operation // of gorxe; "" means opWrite
	port string    // of gorxe
}

// row compares a lane with another one.
type row struct {
	name     string // of the result; "" means the name of the figure
	lane     string // "" means gorxe
	baseline string // name of the baseline in the output
	against  string // the baseline's lane; "" means that of the same name
}

func (r *row) lanes() (lane, against string) {
	lane, against = r.lane, r.against
	if lane == "" {
		lane = string(kindGorxe)
	}
	if against == "" {
		against = r.baseline
	}
	return lane, against
}

// figure is one quantity to measure.
type figure struct {
	name  string
	title string // in the plot
	unit  string
	test  test
	size  int // bytes of a message
	mtu   bth.MTU
	spin  bool // no side ever blocks
	rare  bool // rare events matter: few long measurements instead of many short ones
	lanes []lane
	rows  []row
}

const (
	kib       = 1 << 10
	bulk      = 64 * kib
	lossRate  = 0.01
	smallSize = 64
	wordSize  = 8
	// pairMTU is the MTU of the veth pair: path MTU 4096 with all headers.
	pairMTU = 4200
	// largest is the largest path MTU that fits pairMTU.
	largest = bth.MTU(4096)
)

var (
	laneGorxe = lane{name: string(kindGorxe), kind: kindGorxe}
	laneBare  = lane{name: string(kindBare), kind: kindBare}
	laneCopy  = lane{name: string(kindCopy), kind: kindCopy}
	laneTCP   = lane{name: string(kindTCP), kind: kindTCP}
	laneNoTSO = lane{name: string(kindNoTSO), kind: kindNoTSO}
	laneUDP   = lane{name: string(kindUDP), kind: kindUDP}
	laneRuns  = lane{name: string(kindRuns), kind: kindRuns}
)

// figures returns the figures on a veth pair, for the given ports of gorxe.
func figures(ports []string) []figure {
	list := onePort()
	for i := range list {
		list[i].expand(ports)
	}
	return list
}

// expand replaces each lane of gorxe by one for each port, and each row of gorxe as well. The lanes
// of port xdp keep their names.
func (f *figure) expand(ports []string) {
	own := map[string]bool{} // names of lanes of gorxe
	name := func(lane, port string) string {
		if port == portXDP || !own[lane] {
			return lane
		}
		return lane + "-" + port
	}
	var lanes []lane
	for _, l := range f.lanes {
		if l.kind != kindGorxe {
			lanes = append(lanes, l)
			continue
		}
		own[l.name] = true
		for _, port := range ports {
			p := l
			p.name, p.port = name(l.name, port), port
			lanes = append(lanes, p)
		}
	}
	var rows []row
	for _, port := range ports {
		for _, r := range f.rows {
			lane, against := r.lanes()
			if !own[lane] && port != ports[0] {
				continue // once is enough
			}
			r.lane, r.against = name(lane, port), name(against, port)
			rows = append(rows, r)
		}
	}
	f.lanes, f.rows = lanes, rows
}

// onePort returns the figures of one port.
func onePort() []figure {
	bandwidth := func(name, title string, mtu bth.MTU) figure {
		return figure{
			name: name, title: title, unit: unitBW, test: stream, size: bulk, mtu: mtu,
			lanes: []lane{laneGorxe, laneBare, laneCopy, laneTCP, laneNoTSO, laneRuns},
			rows: []row{
				{baseline: "afxdp"}, {baseline: "afxdp-copy"}, {baseline: "tcp"},
				{baseline: "tcp-notso"}, {baseline: "udp-gso"},
			},
		}
	}
	compared := func(op operation, mtu bth.MTU) figure {
		return figure{
			name:  fmt.Sprintf("%s_bw_64KiB_mtu%d", op, mtu),
			title: fmt.Sprintf("64 KiB %s, MTU %d", strings.ToUpper(string(op)), mtu),
			unit:  unitBW, test: stream, size: bulk, mtu: mtu,
			lanes: []lane{
				{name: string(kindGorxe), kind: kindGorxe, op: op},
				{name: string(opWrite), kind: kindGorxe},
			},
			rows: []row{{baseline: string(opWrite)}},
		}
	}
	return []figure{
		{
			name: "write_rate_64B", title: "64 B WRITE", unit: unitRate, test: stream,
			size:  smallSize,
			mtu:   largest,
			lanes: []lane{laneGorxe, laneBare, laneUDP, laneRuns},
			rows:  []row{{baseline: "afxdp"}, {baseline: "udp"}, {baseline: "udp-gso"}},
		},
		bandwidth("write_bw_64KiB_mtu1024", "64 KiB WRITE, MTU 1024", 1024),
		bandwidth("write_bw_64KiB_mtu4096", "64 KiB WRITE, MTU 4096", largest),
		compared(opRead, 1024),
		compared(opRead, largest),
		compared(opSend, 1024),
		compared(opSend, largest),
		{
			name: "write_lat_8B", title: "8 B WRITE, spinning", unit: unitLatency, test: pingpong,
			size: wordSize, mtu: largest, spin: true,
			lanes: []lane{laneGorxe, laneBare, laneTCP, laneUDP},
			rows:  []row{{baseline: "afxdp"}, {baseline: "tcp"}, {baseline: "udp"}},
		},
		{
			name: "write_lat_8B_blocking", title: "8 B WRITE, blocking", unit: unitLatency,
			test: pingpong,
			size: wordSize, mtu: largest,
			lanes: []lane{laneGorxe, laneBare, laneTCP},
			rows:  []row{{baseline: "afxdp"}, {baseline: "tcp"}},
		},
		{
			name: "goodput_1pct_loss", title: "64 KiB WRITE, 1 % loss", unit: unitBW, test: stream,
			size: bulk, mtu: largest, rare: true,
			lanes: []lane{
				{name: string(kindGorxe), kind: kindGorxe, loss: lossRate},
				{name: laneLossless, kind: kindGorxe},
				{name: string(kindTCP), kind: kindNoTSO, loss: lossRate},
				{name: laneTCPLossless, kind: kindNoTSO},
			},
			rows: []row{
				{baseline: laneLossless},
				{baseline: "tcp"},
				{
					name: "tcp_goodput_1pct_loss", lane: "tcp", baseline: laneLossless,
					against: laneTCPLossless,
				},
			},
		},
	}
}

// memoryFigures returns the figures on the link in memory. Without a kernel there are no sockets to
// compare with.
func memoryFigures() []figure {
	var list []figure
	for _, f := range onePort() {
		g := f
		g.lanes, g.rows = nil, nil
		for _, l := range f.lanes {
			switch l.kind {
			case kindBare:
				l.name = laneMemory
			case kindCopy:
				l.name = laneMemoryCopy
			case kindGorxe:
				l.port = portMemory
			default:
				continue
			}
			g.lanes = append(g.lanes, l)
			if l.name != string(kindGorxe) {
				g.rows = append(g.rows, row{baseline: l.name})
			}
		}
		list = append(list, g)
	}
	return list
}

// Ports returns the names of the ports of gorxe that can be measured on a veth pair.
func Ports() []string { return []string{portXDP, portUDP, portAuto} }

// Names returns the names of the figures.
func Names() []string {
	var n []string
	for _, f := range onePort() {
		n = append(n, f.name)
	}
	return n
}

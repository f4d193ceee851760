package dump

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/roce"
)

// record is a packet as JSON. Fields of extension headers that the packet does not have are
// omitted.
type record struct {
	N       int    `json:"n"` // number of the frame, from 1
	Time    string `json:"time"`
	Iface   string `json:"iface,omitempty"`
	Src     string `json:"src"`
	Dst     string `json:"dst"`
	VLAN    uint16 `json:"vlan,omitempty"` // ID
	PCP     *uint8 `json:"pcp,omitempty"`  // of the VLAN tag, if there is one
	Opcode  string `json:"opcode"`
	DestQP  uint32 `json:"dest_qp"`
	PSN     uint32 `json:"psn"`
	ICRC    string `json:"icrc"` // "ok" or "bad"
	PKey    uint16 `json:"pkey"`
	SE      bool   `json:"se"`
	AckReq  bool   `json:"ack_req"`
	FECN    bool   `json:"fecn"`
	BECN    bool   `json:"becn"`
	Class   int    `json:"class"` // traffic class for the DSCP and the PCP
	DSCP    uint8  `json:"dscp"`
	ECN     uint8  `json:"ecn"` // ECN bits of the IP header: 2 is ECT(0), 3 is CE
	Pad     int    `json:"pad"`
	Payload int    `json:"payload"`         // bytes, without pad
	Error   string `json:"error,omitempty"` // why a receiver drops it although the ICRC is correct
	extensions
}

// extensions are the fields of the extension headers.
type extensions struct {
	VA          *uint64 `json:"va,omitempty"` // RETH, AtomicETH
	RKey        *uint32 `json:"rkey,omitempty"`
	DMALen      *uint32 `json:"dma_len,omitempty"`  // RETH
	SwapAdd     *uint64 `json:"swap_add,omitempty"` // AtomicETH
	Compare     *uint64 `json:"compare,omitempty"`
	Syndrome    *uint8  `json:"syndrome,omitempty"` // AETH
	Ack         *string `json:"ack,omitempty"`      // the syndrome as text
	MSN         *uint32 `json:"msn,omitempty"`
	Original    *uint64 `json:"original,omitempty"`  // AtomicAckETH
	Imm         *uint32 `json:"imm,omitempty"`       // ImmDt
	InvRKey     *uint32 `json:"inv_rkey,omitempty"`  // IETH
	QKey        *uint32 `json:"qkey,omitempty"`      // DETH
	SrcQP       *uint32 `json:"src_qp,omitempty"`    // DETH
	Placement   *uint8  `json:"placement,omitempty"` // FETH
	Selectivity *uint8  `json:"selectivity,omitempty"`
	SelACK      *selACK `json:"selack,omitempty"`
}

func newRecord(n int, c *Capture, m *roce.ClassMap, p *bth.Packet, reason frame.Reason) *record {
	r := &record{
		N: n, Time: c.Info.Time.UTC().Format(time.RFC3339Nano), Iface: c.Iface,
		Src: p.Src.Addr().String(), Dst: p.Dst.Addr().String(), VLAN: p.VLAN & vlanID,
		Opcode: p.BTH.Opcode().String(), DestQP: uint32(p.BTH.DestQP()), PSN: uint32(p.BTH.PSN()),
		ICRC: "ok",
		PKey: uint16(p.BTH.PKey()), SE: p.BTH.Solicited(), AckReq: p.BTH.AckReq(),
		FECN: p.BTH.FECN(), BECN: p.BTH.BECN(),
		Class: classOf(m, p), DSCP: dscp(p), ECN: p.TrafficClass & ecnCE,
		Pad: p.BTH.PadCount(), Payload: len(p.Payload), extensions: extensionsOf(p),
	}
	if p.HasVLAN {
		r.PCP = ptr(pcp(p))
	}
	switch reason {
	case frame.ReasonOK:
	case frame.ReasonICRC:
		r.ICRC = "bad"
	default:
		r.Error = reason.String()
	}
	return r
}

const (
	vlanID    = 1<<12 - 1
	pcpShift  = 13
	ecnCE     = 3
	dscpShift = 2
)

func dscp(p *bth.Packet) uint8 { return p.TrafficClass >> dscpShift }

// pcp returns the priority in the VLAN tag, 0 without one.
func pcp(p *bth.Packet) uint8 { return uint8(p.VLAN >> pcpShift) }

func classOf(m *roce.ClassMap, p *bth.Packet) int { return m.Class(dscp(p), pcp(p)) }

func extensionsOf(p *bth.Packet) (e extensions) {
	i := p.Info
	if i.RETH != 0 {
		h := p.RETH()
		e.VA, e.RKey, e.DMALen = ptr(h.VA()), ptr(uint32(h.RKey())), ptr(h.DMALen())
	}
	if i.AtomicETH != 0 {
		h := p.AtomicETH()
		e.VA, e.RKey, e.SwapAdd, e.Compare = ptr(h.VA()), ptr(uint32(h.RKey())), ptr(h.SwapAdd()), ptr(h.Compare())
	}
	if i.AETH != 0 {
		h := p.AETH()
		e.Syndrome, e.Ack, e.MSN = ptr(uint8(h.Syndrome())), ptr(h.Syndrome().String()), ptr(uint32(h.MSN()))
	}
	if i.AtomicAckETH != 0 {
		e.Original = ptr(p.AtomicAckETH().Original())
	}
	if i.ImmDt != 0 {
		e.Imm = ptr(p.ImmDt().Imm())
	}
	if i.IETH != 0 {
		e.InvRKey = ptr(uint32(p.IETH().RKey()))
	}
	if i.DETH != 0 {
		e.QKey, e.SrcQP = ptr(uint32(p.DETH().QKey())), ptr(uint32(p.DETH().SrcQP()))
	}
	if i.FETH != 0 {
		e.Placement, e.Selectivity = ptr(p.FETH().Placement()), ptr(p.FETH().Selectivity())
	}
	e.SelACK = selACKOf(p)
	return e
}

func ptr[T any](v T) *T { return &v }

// writeLine writes a packet as a line of text:
//
//	12  0.000123  10.0.0.1 > 10.0.0.2  RC RDMA WRITE Only  qp 0x000011 psn 0x000500 ack_req  va 0x1000 rkey 0x1 len 5  5 B
func writeLine(w io.Writer, n int, since time.Duration, m *roce.ClassMap, p *bth.Packet,
	reason frame.Reason) error {
	if p.BTH == nil {
		_, err := fmt.Fprintf(w, "%6d %11.6f  REFUSED: %v\n", n, since.Seconds(), reason)
		return err
	}
	e := extensionsOf(p)
	fields := append(flagsOf(m, p), e.words()...)
	if len(p.Payload) > 0 && e.SelACK == nil && p.Info.Op != bth.OpCNP {
		fields = append(fields, fmt.Sprintf("%d B", len(p.Payload)))
	}
	switch reason {
	case frame.ReasonOK:
	case frame.ReasonICRC:
		fields = append(fields, "BAD ICRC")
	default:
		fields = append(fields, fmt.Sprintf("REFUSED: %v", reason))
	}
	line := fmt.Sprintf("%6d %11.6f  %v > %v  %v  qp %v psn %v  %s", n, since.Seconds(),
		p.Src.Addr(), p.Dst.Addr(),
		p.BTH.Opcode(), p.BTH.DestQP(), p.BTH.PSN(), strings.Join(fields, "  "))
	_, err := fmt.Fprintln(w, strings.TrimRight(line, " "))
	return err
}

// flagsOf returns the flags that are set in a packet's headers, and its VLAN, traffic class and
// P_Key if unusual.
func flagsOf(m *roce.ClassMap, p *bth.Packet) []string {
	var s []string
	add := func(set bool, format string, args ...any) {
		if set {
			s = append(s, fmt.Sprintf(format, args...))
		}
	}
	add(p.HasVLAN && pcp(p) == 0, "vlan %d", p.VLAN&vlanID)
	add(p.HasVLAN && pcp(p) != 0, "vlan %d pcp %d", p.VLAN&vlanID, pcp(p))
	class := classOf(m, p)
	add(class != 0 || dscp(p) != 0, "class %d dscp %d", class, dscp(p))
	add(p.BTH.AckReq(), "ack_req")
	add(p.BTH.Solicited(), "se")
	add(p.TrafficClass&ecnCE == ecnCE, "ce")
	add(p.BTH.FECN(), "fecn")
	add(p.BTH.BECN(), "becn")
	add(p.BTH.PKey() != bth.DefaultPKey, "pkey 0x%04x", uint16(p.BTH.PKey()))
	return s
}

// words formats the fields as text, one element for each header.
func (e extensions) words() []string {
	var s []string
	if e.Placement != nil {
		s = append(s, fmt.Sprintf("placement %d selectivity %d", *e.Placement, *e.Selectivity))
	}
	if e.SrcQP != nil {
		s = append(s, fmt.Sprintf("from qp %v qkey 0x%08x", bth.QPN(*e.SrcQP), *e.QKey))
	}
	switch {
	case e.DMALen != nil:
		s = append(s, fmt.Sprintf("va 0x%x rkey 0x%08x len %d", *e.VA, *e.RKey, *e.DMALen))
	case e.SwapAdd != nil:
		s = append(s, fmt.Sprintf("va 0x%x rkey 0x%08x swap/add 0x%x compare 0x%x", *e.VA, *e.RKey,
			*e.SwapAdd, *e.Compare))
	}
	if e.Ack != nil {
		s = append(s, fmt.Sprintf("%s msn %d", *e.Ack, *e.MSN))
	}
	if e.Original != nil {
		s = append(s, fmt.Sprintf("original 0x%x", *e.Original))
	}
	if e.Imm != nil {
		s = append(s, fmt.Sprintf("imm 0x%08x", *e.Imm))
	}
	if e.InvRKey != nil {
		s = append(s, fmt.Sprintf("invalidate 0x%08x", *e.InvRKey))
	}
	if e.SelACK != nil {
		s = append(s, e.SelACK.String())
	}
	return s
}

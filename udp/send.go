package udp

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"golang.org/x/sys/unix"
)

// Alloc implements driver.Port.
func (p *Port) Alloc(bufs []driver.Buf) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return 0
	}
	n := min(len(bufs), len(p.tx.free))
	rest := len(p.tx.free) - n
	size := p.net.state.Load().info.MaxFrame
	for i, k := range p.tx.free[rest:] {
		bufs[i] = driver.Buf{B: p.tx.slot(k)[:size:size], Token: uint64(k)}
	}
	p.tx.free = p.tx.free[:rest]
	return n
}

// LeastRun implements driver.RunSender.
func (p *Port) LeastRun() int { return 1 }

// Free implements driver.Port.
func (p *Port) Free(bufs []driver.Buf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free(bufs)
}

func (p *Port) free(bufs []driver.Buf) {
	for i := range bufs {
		p.tx.free = append(p.tx.free, uint32(bufs[i].Token))
	}
}

// Send implements driver.Port. It drops frames that the kernel refuses, and says why in Info.Note.
func (p *Port) Send(bufs []driver.Buf) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.free(bufs)
	if p.closed.Load() {
		return 0, driver.ErrClosed
	}
	before := p.out.Stats.TxFrames
	dropped := false // the latest frame with headers
	for i := range bufs {
		b := bufs[i].B
		if bufs[i].Token&driver.NoHeaders != 0 {
			if dropped {
				p.out.Stats.TxDropped += uint64(bufs[i].Packets())
			} else {
				p.out.Join(b, bufs[i].Size)
			}
			continue
		}
		if p.out.Next(b) {
			dropped = false
			continue
		}
		s, headers := p.parse(b)
		if dropped = s == nil; dropped {
			p.out.Stats.TxDropped++
			if headers > 0 {
				p.refusedBy(unix.EADDRNOTAVAIL)
			}
			continue
		}
		if len(bufs) == 1 && p.sendAlone(s, b, headers) {
			break
		}
		p.out.Add(udpmsg.Socket{FD: s.fd, Port: bth.Port, Runs: s.runs, Class: s.class}, b,
			headers)
	}
	p.out.Flush()
	if !p.net.state.Load().info.Up {
		err = driver.ErrLinkDown
	}
	return int(p.out.Stats.TxFrames - before), err
}

// parse returns the socket that is bound to the source address of a frame, or nil, and the length
// of the headers before the BTH, 0 if the frame is too short or of another kind.
func (p *Port) parse(b []byte) (*socket, int) {
	if len(b) <= udpmsg.LenV4 {
		return nil, 0
	}
	var src bth.GID
	n := udpmsg.LenV4
	switch binary.BigEndian.Uint16(b[12:]) {
	case udpmsg.EtherIPv4:
		src.SetIPv4(b[etherLen+12 : etherLen+16])
	case udpmsg.EtherIPv6:
		if n = udpmsg.LenV6; len(b) <= n {
			return nil, 0
		}
		src = bth.GID(b[etherLen+8 : etherLen+24])
	default:
		return nil, 0
	}
	if p.from < len(p.socks) && p.socks[p.from].gid == src {
		return p.socks[p.from], n
	}
	for i, s := range p.socks {
		if s.gid == src && !s.group && s.parent == nil {
			p.from = i
			return s, n
		}
	}
	return nil, n
}

// maxRefusals limits the reasons in Info.Note for which the kernel refuses packets.
const maxRefusals = 4

// refusedBy reports why the kernel refuses to send packets, once for each error.
func (p *Port) refusedBy(err error) {
	if len(p.refusals) == maxRefusals || slices.Contains(p.refusals, err) {
		return
	}
	p.refusals = append(p.refusals, err)
	p.net.setNote(fmt.Sprintf("the kernel did not send some packets (%v): %s", err,
		udpmsg.Advice(err)))
}

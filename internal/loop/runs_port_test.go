package loop

import (
	"bytes"
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
)

// scriptPort is an overlapPort that receives what a test has queued, and records what is sent.
type scriptPort struct {
	overlapPort
	source   uint16     // Info.SourcePort
	leastRun func() int // nil: runs are not sent
	buffers  int        // that Alloc returns at most; 0: no limit
	queue    []burst
	sent     [][]byte // see record
	bytes    uint64   // of all frames that were sent
	dec      frame.Decoder
}

// singlePort hides that a port sends and receives runs.
type singlePort struct{ driver.Port }

// burst is frames that are received as a run, if the port may return runs, or one by one.
type burst struct {
	frames [][]byte
	run    bool
}

func (p *scriptPort) Info() driver.Info {
	i := p.Port.Info()
	i.SourcePort = p.source
	return i
}

func (p *scriptPort) LeastRun() int {
	if p.leastRun == nil {
		return 0
	}
	return p.leastRun()
}

func (p *scriptPort) Alloc(bufs []driver.Buf) int {
	if p.buffers > 0 {
		bufs = bufs[:min(p.buffers, len(bufs))]
	}
	return p.Port.Alloc(bufs)
}

func (p *scriptPort) Receive(bufs []driver.Buf) (n int) {
	for _, b := range p.queue {
		if p.overlap && b.run {
			bufs[n] = p.receiveRun(b.frames)
			n++
			continue
		}
		for _, f := range b.frames {
			bufs[n] = driver.Buf{B: bytes.Clone(f)}
			n++
		}
	}
	p.queue = nil
	return n
}

func (p *scriptPort) receiveRun(frames [][]byte) driver.Buf {
	n := netLen(frames[0])
	r := receivedRun{memory: make([]byte, n)}
	for _, f := range frames {
		r.headers = append(r.headers, f[:n])
		r.memory = append(r.memory, f[n:]...)
	}
	r.original = bytes.Clone(r.memory)
	p.runs = append(p.runs, r)
	p.inRuns += len(frames)
	return driver.Buf{B: r.memory[n:], Size: len(frames[0]) - n,
		Token: uint64(len(p.runs)-1) | driver.NoHeaders}
}

func (p *scriptPort) Release([]driver.Buf) { p.runs = nil }

// netLen returns the length of the headers before the BTH.
func netLen(f []byte) int { return len(f) - len(frame.PeekBTH(f)) }

func (p *scriptPort) Send(bufs []driver.Buf) (n int, err error) {
	for i := range bufs {
		b := &bufs[i]
		n += b.Packets()
		if b.Token&driver.NoHeaders == 0 {
			p.header = bytes.Clone(b.B[:netLen(b.B)])
			p.record(bytes.Clone(b.B))
			continue
		}
		b.Token &^= driver.NoHeaders
		for k := 0; k*b.Size < len(b.B); k++ {
			f := append(bytes.Clone(p.header), b.B[k*b.Size:(k+1)*b.Size]...)
			setRunHeaders(f, len(p.header), k)
			p.record(f)
			p.joined++
		}
	}
	p.Port.Free(bufs)
	return n, nil
}

// setRunHeaders does what the kernel does for packet i of a run: f has the headers of the frame
// before it, n bytes.
func setRunHeaders(f []byte, n, i int) {
	binary.BigEndian.PutUint16(f[n-8+4:], uint16(len(f)-n+8)) // UDP
	if n >= overlapHeaders {
		binary.BigEndian.PutUint16(f[n-48+4:], uint16(len(f)-n+8)) // IPv6
		return
	}
	binary.BigEndian.PutUint16(f[n-28+2:], uint16(len(f)-n+28)) // IPv4
	binary.BigEndian.PutUint16(f[n-28+4:], uint16(i))
}

// record checks the ICRC of a frame, and keeps the frame without what differs in runs: the ICRC,
// and the identification and checksum of IPv4.
func (p *scriptPort) record(f []byte) {
	n := netLen(f)
	if !p.dec.CheckICRC(f, n) {
		p.t.Errorf("wrong ICRC in a sent frame: % x", f[:n+bth.HeaderLen])
	}
	p.bytes += uint64(len(f))
	clear(f[len(f)-bth.ICRCLen:])
	if n < overlapHeaders {
		clear(f[n-28+4:][:2])
		clear(f[n-28+10:][:2])
	}
	p.sent = append(p.sent, f)
}

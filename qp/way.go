package qp

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
)

// way is what the paths of many QPs have in common: all but the source port, which differs from flow to
// flow so that networks spread them. A device with ten thousand connections has them with a few hundred peers, so
// each way is kept once, and the headers that go in front of every packet stay in the cache.
type way struct {
	Path     // its source port is zero
	uses int // QPs
}

// noWay is that of a QP that has none.
var noWay way

// portAt is where the source port stands in the headers: they end with UDP's 8 bytes (RoCEv2 A17.3). Negative:
// they are too short to have one.
func (p *Path) portAt() int { return int(p.HeaderLen) - 8 }

// put writes the headers with a source port, and zeros behind them up to MaxNetHeader: a copy of known length is a few
// instructions, one of HeaderLen bytes a call.
func (w *way) put(b []byte, port uint16) int {
	*(*[bth.MaxNetHeader]byte)(b) = w.Header
	n := int(w.HeaderLen)
	if at := w.portAt(); at >= 0 {
		binary.BigEndian.PutUint16(b[at:], port)
	}
	return n
}

// path is the whole path of a QP.
func (w *way) path(port uint16) Path {
	p := w.Path
	w.put(p.Header[:], port)
	return p
}

// setPath gives the QP a path, and its place to whoever comes next.
func (q *QP) setPath(p *Path) {
	q.dropPath()
	key, port := *p, uint16(0)
	if at := p.portAt(); at >= 0 {
		port = binary.BigEndian.Uint16(p.Header[at:])
		key.Header[at], key.Header[at+1] = 0, 0
	}
	e := q.eng
	w := e.ways[key]
	if w == nil {
		w = &way{Path: key}
		e.ways[key] = w
	}
	w.uses++
	q.way, q.port = w, port
}

// dropPath lets go of the QP's path.
func (q *QP) dropPath() {
	if w := q.way; w != nil && w != &noWay {
		if w.uses--; w.uses == 0 {
			delete(q.eng.ways, w.Path)
		}
	}
	q.way, q.port = &noWay, 0
}

package qp

import "github.com/gorxe/gorxe/frame"

// sharedPath is a path that QPs with the same peer share. Its source port is zero: each QP has its
// own, so that networks spread the QPs over parallel links. Sharing keeps the headers of thousands
// of QPs in the cache. A sharedPath fills two cache lines.
type sharedPath struct {
	frame.Path
	uses int32 // QPs
}

// noPath is the path of a QP that has none. It is not valid.
var noPath sharedPath

// fullPath returns the QP's path with its source port.
func (q *QP) fullPath() frame.Path {
	p := q.path.Path
	p.SetSourcePort(q.srcPort)
	return p
}

// setPath replaces the QP's path. An ECN-capable QP marks its packets as ECT(0), unless the ECN
// bits of the path are set.
func (q *QP) setPath(p frame.Path) {
	q.dropPath()
	if q.ecnCapable() {
		p.SetECT()
	}
	port := p.SourcePort()
	p.SetSourcePort(0)
	e := q.eng
	s := e.paths[p]
	if s == nil {
		s = &sharedPath{Path: p}
		e.paths[p] = s
	}
	s.uses++
	q.path, q.srcPort = s, port
}

// dropPath removes the QP's path.
func (q *QP) dropPath() {
	if s := q.path; s != nil && s != &noPath {
		if s.uses--; s.uses == 0 {
			delete(q.eng.paths, s.Path)
		}
	}
	q.path, q.srcPort = &noPath, 0
}

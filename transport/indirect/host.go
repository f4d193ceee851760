package indirect

import (
	"sync"

	"github.com/gorxe/gorxe/roce"
)

// Request is a transfer that a peer requests.
type Request struct {
	Conn *Conn
	TID  TID
	Kind Kind   // Write: the peer writes to this side's memory; Read: it reads
	DBA  uint64 // base address as the peer named it; the Host interprets it
	Len  uint32 // bytes
}

// Region is memory that a Host has made ready: Len bytes from offset Off of a region that grants
// LocalWrite and RemoteWrite (for a WRITE).
type Region struct {
	MR  *roce.MR
	Off int
}

// Host provides the memory that peers write and read. Its methods are called on the goroutine that
// drives the Endpoint. They must not block and must not call the Endpoint.
type Host interface {
	// Register makes [DBA, DBA+Len) ready for a transfer, or returns false if that is not possible
	// now. It is called again with every repetition of the request until it succeeds.
	Register(r *Request) (Region, bool)
	// Release returns the memory of a registered transfer. delivered: all bytes are in it (Write)
	// or have been sent (Read). Otherwise the transfer was abandoned and the contents of the memory
	// are undefined.
	Release(r *Request, m Region, delivered bool)
}

// Space is a Host over one memory region. Addresses are offsets into it. A range is refused while
// another transfer or a Hold overlaps it.
type Space struct {
	mr *roce.MR
	// Delivered, if not nil, is called with the bytes of every delivered WRITE. They are valid
	// until it returns.
	Delivered func(r *Request, b []byte)

	mu    sync.Mutex
	spans []span
}

type span struct{ from, to uint64 }

// NewSpace creates a Host from a region.
func NewSpace(mr *roce.MR) *Space { return &Space{mr: mr, spans: make([]span, 0, 64)} }

// Hold reserves a range for the program until Free. Transfers to it get invalid answers meanwhile.
// It fails while a transfer overlaps the range.
func (s *Space) Hold(off, n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(off, n)
}

// Free ends a Hold with the same arguments.
func (s *Space) Free(off, n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.spans {
		if p.from == off && p.to == off+n {
			s.spans[i] = s.spans[len(s.spans)-1]
			s.spans = s.spans[:len(s.spans)-1]
			return
		}
	}
}

func (s *Space) take(off, n uint64) bool {
	if size := uint64(s.mr.Len()); off > size || n > size-off {
		return false
	}
	for _, p := range s.spans {
		if off < p.to && p.from < off+n {
			return false
		}
	}
	s.spans = append(s.spans, span{off, off + n})
	return true
}

// Register implements Host.
func (s *Space) Register(r *Request) (Region, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.take(r.DBA, uint64(r.Len)) {
		return Region{}, false
	}
	return Region{MR: s.mr, Off: int(r.DBA)}, true
}

// Release implements Host.
func (s *Space) Release(r *Request, m Region, delivered bool) {
	if delivered && r.Kind == Write && s.Delivered != nil {
		s.Delivered(r, m.MR.Bytes()[m.Off:m.Off+int(r.Len)])
	}
	s.Free(r.DBA, uint64(r.Len))
}

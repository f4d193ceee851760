package extent

import (
	"errors"
	"fmt"
	"slices"
)

// ErrOverlap means that a range was added that is in the set already, completely or in part.
var ErrOverlap = errors.New("overlapping ranges")

// Extent is a range of a file and the CRC32C of its contents. Offset and Length are in bytes.
type Extent struct {
	Offset, Length int64
	CRC            uint32
}

// End returns the offset of the first byte after e.
func (e Extent) End() int64 { return e.Offset + e.Length }

// Set is a set of ranges that do not overlap, in the order of their offsets. Adjacent ranges are
// merged. The zero Set is empty. It is not safe for concurrent use.
type Set struct {
	list  []Extent
	bytes int64
}

// Add adds a range. Empty ranges are ignored. It returns ErrOverlap and changes nothing if the
// range overlaps one of the set.
func (s *Set) Add(e Extent) error {
	if e.Length == 0 {
		return nil
	}
	i, _ := slices.BinarySearchFunc(s.list, e.Offset, func(x Extent, offset int64) int {
		if x.Offset < offset {
			return -1
		}
		return 1
	})
	if i > 0 && s.list[i-1].End() > e.Offset || i < len(s.list) && e.End() > s.list[i].Offset {
		return fmt.Errorf("%w: %d bytes at offset %d", ErrOverlap, e.Length, e.Offset)
	}
	s.bytes += e.Length
	if i > 0 && s.list[i-1].End() == e.Offset {
		i--
		s.list[i] = join(s.list[i], e)
	} else {
		s.list = slices.Insert(s.list, i, e)
	}
	if i+1 < len(s.list) && s.list[i].End() == s.list[i+1].Offset {
		s.list[i] = join(s.list[i], s.list[i+1])
		s.list = slices.Delete(s.list, i+1, i+2)
	}
	return nil
}

func join(a, b Extent) Extent {
	return Extent{a.Offset, a.Length + b.Length, Combine(a.CRC, b.CRC, b.Length)}
}

// Bytes returns the number of bytes in the set.
func (s *Set) Bytes() int64 { return s.bytes }

// List returns the ranges. The caller must not change them.
func (s *Set) List() []Extent { return s.list }

// CRC returns the CRC32C of a file of the given size that has the contents of the set, and zeros
// elsewhere. All ranges must end within size.
func (s *Set) CRC(size int64) uint32 {
	var crc uint32
	at := int64(0)
	for _, e := range s.list {
		crc = Combine(crc, Zeros(e.Offset-at), e.Offset-at)
		crc = Combine(crc, e.CRC, e.Length)
		at = e.End()
	}
	return Combine(crc, Zeros(size-at), size-at)
}

// Missing returns the parts of the range from offset to end that are not in the set.
func (s *Set) Missing(offset, end int64) (list []Extent) {
	for _, e := range s.list {
		if e.End() <= offset {
			continue
		}
		if e.Offset >= end {
			break
		}
		if e.Offset > offset {
			list = append(list, Extent{Offset: offset, Length: e.Offset - offset})
		}
		offset = e.End()
	}
	if offset < end {
		list = append(list, Extent{Offset: offset, Length: end - offset})
	}
	return list
}

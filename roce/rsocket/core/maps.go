package core

import "fmt"

// Map is memory that a side opens for WRITEs of the other at an offset.
type Map struct {
	Offset uint64
	Buffer
}

// maps is the memory that both sides have opened.
type maps struct {
	remote []Map // of the peer, by index in the map table
	local  []Map // that the peer knows or will know, by index in its table
	told   int   // how many of local the peer knows
}

// OpenMap opens memory to the peer. Control returns the message. It reports false if the peer has
// no free entry.
func (s *Stream) OpenMap(m Map) bool {
	if len(s.maps.local) >= s.peer.Maps {
		return false
	}
	s.maps.local = append(s.maps.local, m)
	return true
}

// nextMap returns the WRITE of the next entry of the peer's map table. It uses a credit of data.
func (s *Stream) nextMap() (Write, bool) {
	t := &s.send
	if s.maps.told == len(s.maps.local) || t.sent == t.limit || s.shutdown {
		return Write{}, false
	}
	i := s.maps.told
	m := &s.maps.local[i]
	w := Write{Imm: message(kindMap, uint32(i)), IsInline: true, Len: mapEntryLen,
		Addr: s.peer.List.Addr + uint64(s.peer.List.Len)*entryLen + uint64(i)*mapEntryLen,
		Key:  s.peer.List.Key}
	o := order(s.peer.BigEndian)
	m.appendTo(o.append64(w.Inline[:0], m.Offset), o)
	s.maps.told++
	t.sent++
	return s.control(w), true
}

// receiveMap takes an entry of the map table.
func (s *Stream) receiveMap(index, n int) error {
	if index >= len(s.maps.remote) || n != mapEntryLen {
		return fmt.Errorf("%w: entry %d of %d bytes in a map table of %d", ErrProtocol, index, n,
			len(s.maps.remote))
	}
	var b [mapEntryLen]byte
	load(b[:], s.mem, listEntries*entryLen+index*mapEntryLen)
	s.maps.remote[index] = Map{Offset: littleEndian.uint64(b[:]),
		Buffer: parseBuffer(b[8:], littleEndian)}
	s.receive.messages++
	return nil
}

// Mapped returns how many bytes from an offset on belong to memory that the peer has opened, 0 if
// it has opened none there.
func (s *Stream) Mapped(offset uint64) int {
	m, at := s.mapAt(offset)
	if m == nil {
		return 0
	}
	return int(uint64(m.Len) - at)
}

func (s *Stream) mapAt(offset uint64) (m *Map, at uint64) {
	for i := range s.maps.remote {
		m := &s.maps.remote[i]
		if at := offset - m.Offset; offset >= m.Offset && at < uint64(m.Len) {
			return m, at
		}
	}
	return nil, 0
}

// MapSpace returns where the next bytes for mapped memory belong in the send buffer, and how many
// SendMapped accepts now, without regard to the length of the memory.
func (s *Stream) MapSpace() (off, n int) {
	if s.send.depth == 0 || s.shutdown || s.disconnect || s.peerDisconnect {
		return 0, 0
	}
	return s.Free()
}

// SendMapped returns the WRITE of the next n bytes of the send buffer into memory that the peer has
// opened at an offset. n must be at least 1 and at most what Mapped and MapSpace return.
func (s *Stream) SendMapped(offset uint64, n int) Write {
	t := &s.send
	m, at := s.mapAt(offset)
	w := Write{Signaled: true, Addr: m.Addr + at, Key: m.Key, Len: n,
		Off: int(t.head % uint64(s.cfg.SendLen))}
	t.depth--
	t.quiet, t.quietBytes = 0, 0
	w.ID = t.post(posted{bytes: n})
	t.head += uint64(n)
	return w
}

// MapsOpen reports whether the peer was told all memory that OpenMap has opened.
func (s *Stream) MapsOpen() bool { return s.maps.told == len(s.maps.local) }

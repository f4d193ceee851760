package udpmsg

import "golang.org/x/sys/unix"

// The kernel tells how much memory the packets occupy that a socket has sent and that have not left
// the interface (SIOCOUTQ). This is more than their length. The history of what was sent converts
// it: the packets that have not left are the latest ones.
const (
	history = 256 // messages, a power of 2

	skbSize    = 256 // of the kernel's struct sk_buff, bytes
	skbTail    = 320 // struct skb_shared_info behind the data
	skbHead    = 31  // space in front of the data
	skbMinimum = 512 // the smallest block that holds them
	runPacket  = 832 // memory of a packet of a run, in addition to its length
)

// sent is what was sent.
type sent struct {
	bytes  int // of frames
	memory int // estimate of what they occupy in the kernel
}

// past are the latest messages.
type past struct {
	ring [history]sent
	next uint // number of messages so far
}

// add adds a message of n packets with headers of head bytes each and a sum of payload bytes.
func (h *past) add(packets, head, bytes int) {
	m := sent{bytes: bytes + packets*head, memory: bytes + packets*runPacket}
	if packets == 1 {
		for m.memory = skbMinimum; m.memory < m.bytes+skbHead+skbTail; m.memory *= 2 {
		}
		m.memory += skbSize
	}
	h.ring[h.next%history] = m
	h.next++
}

// bytes returns the length of the latest frames that occupy memory in the kernel.
func (h *past) bytes(memory int) (n int) {
	for i := uint(1); i <= min(h.next, history); i++ {
		m := &h.ring[(h.next-i)%history]
		if memory < m.memory {
			return n + m.bytes*memory/m.memory
		}
		n += m.bytes
		memory -= m.memory
	}
	return n + memory
}

// head returns the length of the headers of a packet of message i.
func (s *Sender) head(i int) int {
	if s.out.headers[i].hdr.Namelen == unix.SizeofSockaddrInet4 {
		return LenV4
	}
	return LenV6
}

// Backlog returns the length of the frames that were sent through sockets and have not left the
// interface, in bytes. Frames whose packets the kernel keeps elsewhere do not count.
func (s *Sender) Backlog(sockets ...int) int {
	memory := 0
	for _, fd := range sockets {
		n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		if err == nil {
			memory += n
		}
	}
	return s.past.bytes(memory)
}

package udpmsg

import "golang.org/x/sys/unix"

// changeAfter is the number of consecutive messages with the same traffic class, another one than
// that of the socket, after which the socket gets this class.
const changeAfter = 32

// Class is the traffic class with which a socket sends packets that have no control message. The
// kernel needs less time for these, so it follows the packets. The zero value is for a socket whose
// traffic class is 0 and stays so.
type Class struct {
	fd    int
	v6    bool
	ready bool  // the class may change
	value uint8 // of the socket
	other uint8 // of the latest messages
	count int   // of these messages; 0: the latest one had the class of the socket
}

// NewClass returns the traffic class of a socket. Nobody else may change it then.
func NewClass(fd int, v6 bool) *Class {
	c := &Class{fd: fd, v6: v6}
	level, name := c.option()
	value, err := unix.GetsockoptInt(fd, level, name)
	c.value, c.ready = uint8(value), err == nil
	return c
}

func (c *Class) option() (level, name int) {
	if c.v6 {
		return unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	return unix.IPPROTO_IP, unix.IP_TOS
}

// covers reports whether a message with a traffic class needs no control message for it.
func (c *Class) covers(class uint8) bool {
	if class == c.value {
		c.count = 0
		return true
	}
	if class != c.other {
		c.other, c.count = class, 0
	}
	c.count++
	return false
}

// follow changes the class of the socket if all latest messages had another one. No messages may
// wait, because those without a control message have the class of the socket.
func (c *Class) follow() {
	if c.count < changeAfter || !c.ready {
		return
	}
	level, name := c.option()
	c.ready = unix.SetsockoptInt(c.fd, level, name, int(c.other)) == nil
	if c.ready {
		c.value = c.other
	}
	c.count = 0
}

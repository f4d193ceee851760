package rsocket

import (
	"errors"
	"fmt"
	"math"
	"net"
	"syscall"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket/core"
)

// Map opens mem for WriteAt of the peer (riowrite), at an offset that the peer uses: from offset to
// offset + len(mem) - 1. The peer writes at any time, and nothing tells this side: poll the memory
// with Load8, Load32 or Load64 of the region that Map returns. The region is closed with the
// connection; closing it earlier makes a WriteAt of the peer fail, and with it the connection.
//
// The peer must have an entry for it: Config.Mappings, or RDMA_IOMAPSIZE of librdmacm. An entry has
// 32 bits for the length, so mem must be shorter than 4 GiB.
func (c *Conn) Map(mem []byte, offset int64) (*roce.MR, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	err := c.writable()
	c.mu.Unlock()
	if err == nil && uint64(len(mem)) > math.MaxUint32 {
		err = &failure{errno: syscall.EINVAL, text: fmt.Sprintf("memory of %d bytes: map parts of "+
			"less than 4 GiB, each at its own offset", len(mem))}
	}
	if err != nil {
		return nil, c.opError("map", err)
	}
	m, err := c.pd.RegisterMR(mem, roce.LocalWrite|roce.RemoteWrite)
	if err != nil {
		return nil, c.opError("map", err)
	}
	if err := c.tell(m, offset); err != nil {
		return nil, c.opError("map", errors.Join(err, m.Close()))
	}
	return m, nil
}

// tell tells the peer of a region.
func (c *Conn) tell(m *roce.MR, offset int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	if !c.stream.OpenMap(core.Map{Offset: uint64(offset), Buffer: core.Buffer{
		Addr: m.Addr(), Key: uint32(m.RKey()), Len: uint32(m.Len())}}) {
		return &failure{errno: syscall.ENOSPC, text: "the peer has no free entry for this memory: " +
			"raise its Config.Mappings or RDMA_IOMAPSIZE"}
	}
	c.maps = append(c.maps, m)
	c.control()
	return c.awaitWritable(opener)
}

// WriteAt writes p into memory that the peer has opened with Map (riomap). It returns when p is
// posted. The bytes arrive in order, before those of a later Write. It implements io.WriterAt.
func (c *Conn) WriteAt(p []byte, offset int64) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for n < len(p) {
		k, err := c.writeAt(p[n:], uint64(offset)+uint64(n))
		if err != nil {
			return n, c.opError("write", err)
		}
		n += k
	}
	return n, nil
}

// writeAt writes the beginning of p.
func (c *Conn) writeAt(p []byte, offset uint64) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendStaged() // the send buffer is a ring
	if err := c.awaitWritable(mapper); err != nil {
		return 0, err
	}
	room := c.stream.Mapped(offset)
	if room == 0 {
		return 0, &failure{errno: syscall.EFAULT, text: fmt.Sprintf("the peer has opened no memory "+
			"at offset %d: wait until it has called Map or riomap, and has written something",
			int64(offset))}
	}
	off, n := c.stream.MapSpace()
	n = copy(c.send.Bytes()[off:][:min(n, room, minChunk)], p)
	w := c.stream.SendMapped(offset, n)
	c.post(&w)
	return n, c.err
}

package rftp

import (
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp/core"
)

// poolAddr is the address of every pool as the peer sees it. Keys distinguish the regions, and no
// peer learns the addresses of this process.
const poolAddr = 1 << 32

// headerAt is the offset of the header in the memory of a block. The payload follows it.
const headerAt = Align - core.HeaderLen

// Block is memory that the NIC writes or reads without a copy. The program has it from GetFree to
// Send or PutFree, and from GetReady to PutFree.
type Block struct {
	// Data is the memory of the payload, aligned to Align. The program fills it after GetFree;
	// after GetReady it holds Len bytes, and its capacity is a multiple of Align.
	Data []byte
	// Len is the number of bytes of payload. The program sets it before Send, and also Offset, Tag
	// and Meta, which mean nothing to the protocol.
	Len    int
	Offset uint64
	Tag    uint32
	Meta   [24]byte

	// Session is the session of a block from the peer, and Seq its number in the session, from 0 in
	// the order of Send.
	Session, Seq uint32

	conn  *Conn
	out   bool // of the source's pool
	index int
}

// pool is memory for blocks.
type pool struct {
	mr   *roce.MR
	list []Block
}

func (p *pool) init(c *Conn, mr *roce.MR, n, size int, out bool) {
	p.mr, p.list = mr, make([]Block, n)
	for i := range p.list {
		p.list[i] = Block{conn: c, out: out, index: i}
	}
}

// memory returns the payload of a block.
func (p *pool) memory(i, size int) []byte {
	at := i*stride(size) + Align
	return p.mr.Bytes()[at : at+size : (i+1)*stride(size)]
}

// header returns the header of a block.
func (p *pool) header(i, size int) []byte {
	return p.mr.Bytes()[i*stride(size)+headerAt:][:core.HeaderLen]
}

// sge returns the header and n-HeaderLen bytes of payload.
func (p *pool) sge(i, size, n int) roce.SGE { return p.mr.SGE(i*stride(size)+headerAt, n) }

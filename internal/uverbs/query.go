package uverbs

import (
	"math/bits"
	"net"
	"syscall"

	"github.com/gorxe/gorxe/internal/abi"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

// What QUERY_DEVICE and QUERY_PORT return.
const (
	maxMRSize   = maxMirror
	maxQPs      = 1 << 16
	maxSRQs     = 1 << 16
	maxAHs      = 1 << 16
	maxMcast    = 1 << 13 // groups
	maxQueue    = qp.MaxQueueDepth - 1
	maxCQEs     = 1<<20 - 1
	maxInline   = qp.MaxInline
	pageSizes   = 0xfffff000
	portCaps    = 1<<16 | 1<<26 // CM_SUP, IP_BASED_GIDS
	portFlags   = 1             // GRH_REQUIRED
	ackDelay    = 15
	gidTableLen = 1024
	vectors     = 1
	port        = 1        // the only one
	vendorID    = 0xffffff // a software device

	// PORT_ACTIVE_EVENT, SYS_IMAGE_GUID, RC_RNR_NAK_GEN, SRQ_RESIZE, MEM_WINDOW,
	// MEM_MGT_EXTENSIONS (LOCAL_INV), MEM_WINDOW_TYPE_2B
	deviceCaps = 1<<10 | 1<<11 | 1<<12 | 1<<13 | 1<<17 | 1<<21 | 1<<24
	atomicHCA  = 1 // atomic among the QPs of this device

	portActive, portDown = 4, 1
	physLinkUp           = 5
	physDisabled         = 3
	linkEthernet         = 2
	gidTypeRoCEv2        = 2
	gidEntrySize         = 32
)

func (c *Context) putDevice(e *abi.Encoder) {
	guid := c.dev.NodeGUID()
	limits := c.dev.dev.Limits()
	qps, mrs, size := uint32(min(maxQPs, limits.QPs)), uint32(min(maxObjects, limits.MRs)),
		uint64(maxMRSize)
	if limits.Memory > 0 {
		size = min(size, limits.Memory)
	}
	e.U64(1 << 32) // firmware version 1.0.0
	e.Bytes(guid[:])
	e.Bytes(guid[:])
	e.U64(size)
	e.U64(pageSizes)
	e.U32(vendorID, 0, 1, qps, maxQueue, deviceCaps, qp.MaxSGE, qp.MaxSGE, maxObjects, maxCQEs,
		mrs, maxObjects)
	e.U32(qp.MaxRdAtomic, 0, qps*qp.MaxRdAtomic, qp.MaxRdAtomic, 0) // RD atomics
	e.U32(atomicHCA, 0, 0, mrs, 0, 0)
	e.U32(maxMcast, qps, maxMcast*16, maxAHs, 0, 0, maxSRQs, maxQueue, qp.MaxSGE)
	e.U16(uint16(len(c.dev.dev.PKeys())))
	e.U8(ackDelay, 1, 0, 0, 0, 0)
}

func (c *Context) queryDevice(r *request) syscall.Errno {
	c.putDevice(&r.out)
	return 0
}

// queryDeviceEx answers the extended form: no on-demand paging, no RSS, no tag matching.
func (c *Context) queryDeviceEx(r *request) syscall.Errno {
	const size = 304
	c.putDevice(&r.out)
	r.out.U32(0, uint32(min(size, r.outLen)))
	r.out.Bytes(make([]byte, 24+16)) // on-demand paging, time stamps
	r.out.U64(deviceCaps)
	r.out.Bytes(make([]byte, size-len(r.out.B)))
	r.out.B = r.out.B[:min(len(r.out.B), r.outLen)]
	return 0
}

// mtuCode returns the code of a path MTU (ib_mtu): 1 is 256 bytes, 5 is 4096.
func mtuCode(m roce.MTU) uint8 {
	if m < 256 {
		return 1
	}
	return uint8(bits.Len(uint(m)) - 8)
}

func (c *Context) putPort(e *abi.Encoder) {
	info := c.dev.dev.Info()
	state, phys := uint8(portActive), uint8(physLinkUp)
	if !info.Up || c.dev.dev.Err() != nil {
		state, phys = portDown, physDisabled
	}
	e.U32(portCaps, qp.MaxMessage, 0, 0, gidTableLen)
	e.U16(uint16(len(c.dev.dev.PKeys())))
	e.U16(0) // LID
	e.U16(0) // subnet manager's LID
	e.U8(state, mtuCode(4096), mtuCode(info.ActiveMTU), 0, 1, 0, 0, 0)
	e.U8(1, 1, phys, linkEthernet, portFlags, 0) // width, speed
}

func (c *Context) queryPort(r *request) syscall.Errno {
	r.in.Skip(8)
	if r.in.U8() != 1 {
		return syscall.EINVAL
	}
	c.putPort(&r.out)
	return 0
}

func (c *Context) queryPortIoctl(a *attrs) syscall.Errno {
	if uint8(a.value(0)) != 1 {
		return syscall.EINVAL
	}
	e := abi.Encoder{B: make([]byte, 0, 64)}
	c.putPort(&e)
	e.U64(0)
	return a.output(1, e.B)
}

func (c *Context) getContext(a *attrs) syscall.Errno {
	var n, support abi.Encoder
	n.U32(vectors)
	support.U64(1) // optional access flags of MRs
	if no := a.output(0, n.B); no != 0 {
		return no
	}
	return a.output(1, support.B)
}

// putGID writes an ib_uverbs_gid_entry.
func (c *Context) putGID(e *abi.Encoder, g *roce.GIDEntry) {
	e.Bytes(g.GID[:])
	ifindex := 0
	if i, err := net.InterfaceByName(c.dev.dev.Info().Name); err == nil {
		ifindex = i.Index
	}
	e.U32(uint32(g.Index), 1, gidTypeRoCEv2, uint32(ifindex))
}

func (c *Context) queryGIDTable(a *attrs) syscall.Errno {
	size := int(a.value(0))
	x := a.find(2)
	if size < gidEntrySize || size > 4096 || a.value(1) != 0 || x == nil {
		return syscall.EINVAL
	}
	gids := c.dev.dev.GIDs()
	if int(x.len) < len(gids)*size {
		return syscall.EINVAL
	}
	var out abi.Encoder
	for i := range gids {
		var e abi.Encoder
		c.putGID(&e, &gids[i])
		out.Bytes(e.B)
		out.Bytes(make([]byte, size-len(e.B)))
	}
	if len(out.B) > 0 {
		if a.call.WriteAt(out.B, x.data) != nil {
			return syscall.EFAULT
		}
		if no := a.mark(x); no != 0 {
			return no
		}
	}
	var n abi.Encoder
	n.U64(uint64(len(gids)))
	return a.output(3, n.B)
}

func (c *Context) queryGIDEntry(a *attrs) syscall.Errno {
	if a.value(0) != 1 || a.value(2) != 0 {
		return syscall.EINVAL
	}
	gids := c.dev.dev.GIDs()
	for i := range gids {
		if uint64(gids[i].Index) == a.value(1) {
			var e abi.Encoder
			c.putGID(&e, &gids[i])
			return a.output(3, e.B)
		}
	}
	if a.value(1) >= gidTableLen {
		return syscall.EINVAL
	}
	return syscall.ENODATA // an empty entry
}

func (c *Context) allocAsync(a *attrs) syscall.Errno {
	ch, err := newChannel()
	if err != nil {
		return errno(err)
	}
	if _, no := a.outputFD(0, ch.read); no != 0 {
		ch.close()
		return no
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		ch.close()
		return syscall.EIO
	}
	if old := c.async.Swap(ch); old != nil {
		old.close()
	}
	return 0
}

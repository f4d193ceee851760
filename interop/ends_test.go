//go:build interop

package interop_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/roce"
)

// The layout of every side's memory: consecutive blocks of up to slot bytes.
const (
	slot   = 64 << 10
	slots  = 32
	region = slot * slots
	qkey   = 0x11111111
	depth  = 512 // of every queue
)

// address is what one side tells the other.
type address struct {
	qpn  uint32
	psn  uint32
	gid  netip.Addr
	mem  uint64
	rkey uint32
}

// setting describes how a QP is created and connected.
type setting struct {
	kind roce.QPType
	v6   bool
	mtu  bth.MTU
	srq  bool
	new  bool // FLUSH and ATOMIC_WRITE, which the kernel has since 6.2

	retries    int // 0 = 7
	rnrRetries int // 0 = 7, forever
	rnrTimer   int // code; 0 = 12, 0.64 ms
	timeout    int // 0 = 14, 67 ms
}

func (s *setting) setDefaults() {
	for _, f := range []struct {
		v *int
		d int
	}{{&s.retries, 7}, {&s.rnrRetries, 7}, {&s.rnrTimer, 12}, {&s.timeout, 14}} {
		if *f.v == 0 {
			*f.v = f.d
		}
	}
	s.timeout += slow
}

// work is n send work requests: request k has ID id + k, and its offsets advance by step and rstep.
type work struct {
	op              roce.Op
	id              uint64
	n               int // 0 = 1
	off, size, step int
	raddr           uint64
	rkey            uint32
	rstep           int
	imm             uint32 // imm + k
	inv             uint32
	cmp, swap       uint64 // CMP_SWAP: cmp + k, swap + k; FETCH_ADD: swap
	solicited       bool
	level           roce.Level // FLUSH: of size bytes, or the region
	to              *address   // UD
}

// wc is a completion.
type wc struct {
	id     uint64
	status string // ibv_wc_status_str's text
	size   uint32
	imm    uint32 // or the invalidated key
	src    uint32
}

const success = "success"

// queue selects a CQ.
type queue byte

const (
	sendQueue queue = 's'
	recvQueue queue = 'r'
)

// end is one side of a scenario. Errors that cannot happen between correct sides fail the test.
type end interface {
	address() address
	connect(remote address)
	post(w work)
	recv(id uint64, n, off, size, step int)
	poll(q queue, n int, patience time.Duration) []wc
	fill(seed uint32, n, off, size, step int)
	check(seed uint32, n, off, size, step int)
	peek(off int) uint64
	poke(off int, v uint64)
	window(kind windowKind, off, size int) (rkey uint32)
	invalidate(rkey uint32) // LOCAL_INV
	join(group netip.Addr)  // a multicast group
	state() string
	kill() // like a crash of the program
}

// windowKind is a way to grant the peer part of a region for a while.
type windowKind byte

const (
	window1 windowKind = iota // a memory window of type 1
	window2                   // of type 2B
	fastReg                   // REG_MR: gorxe only, libibverbs has none
	slowReg                   // an ordinary region whose key the peer may invalidate: gorxe only
	numKinds
)

func (k windowKind) String() string {
	return [...]string{"memory window type 1", "memory window type 2B", "fast-registered region",
		"region"}[k]
}

// ends creates both sides, connected, the active one first.
func (r *rig) ends(t *testing.T, v variant, s setting) (active, passive end) {
	t.Helper()
	s.v6, s.mtu = v.v6, v.mtu
	s.setDefaults()
	g, k := newGorxeEnd(t, r, s), newKernelEnd(t, r, s)
	ga, ka := g.address(), k.address()
	g.connect(ka)
	k.connect(ga)
	if v.gorxePassive {
		return k, g
	}
	return g, k
}

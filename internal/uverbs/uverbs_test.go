package uverbs

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/roce"
)

func TestQueries(t *testing.T) {
	p := pair(t, testbed.Config{})[0]
	if _, _, no := p.try(cmdQueryDevice, enc(uint64(0)), 0, 0); no != syscall.ENOSPC {
		t.Errorf("QUERY_DEVICE without output = %v, want ENOSPC", no)
	}
	out, _ := p.do(cmdQueryDevice, enc(uint64(0)), 176, 0)
	if n := le.Uint32(out[52:]); n != maxQPs {
		t.Errorf("max_qp = %d, want %d", n, maxQPs)
	}
	if mrs, mws := le.Uint32(out[80:]), le.Uint32(out[120:]); mrs != maxObjects ||
		mws != maxObjects {
		t.Errorf("max_mr = %d, max_mw = %d, want %d", mrs, mws, maxObjects)
	}
	if out[171] != 1 {
		t.Errorf("phys_port_cnt = %d, want 1", out[171])
	}
	out, _ = p.do(cmdExtended|cmdQueryDevice, enc(uint64(0)), 304, 0)
	if n := le.Uint32(out[180:]); n != 304 {
		t.Errorf("response_length = %d, want 304", n)
	}
	port := make([]byte, 48)
	if _, no := p.ioctl(0, methodQueryPort, iattr{id: 0, in: []byte{1}},
		iattr{id: 1, out: port}); no != 0 {
		t.Fatalf("QUERY_PORT: %v", no)
	}
	if port[26] != portActive || port[37] != linkEthernet {
		t.Errorf("state = %d, link_layer = %d, want %d and %d", port[26], port[37], portActive,
			linkEthernet)
	}
	if port[38] != portFlags {
		t.Errorf("flags = %d, want %d, GRH_REQUIRED", port[38], portFlags)
	}
	gid := make([]byte, 32)
	if _, no := p.ioctl(0, methodQueryGIDEntry, iattr{id: 1, in: enc(uint32(0))},
		iattr{id: 0, in: enc(uint32(1))}, iattr{id: 2, in: enc(uint32(0))},
		iattr{id: 3, out: gid}); no != 0 {
		t.Fatalf("QUERY_GID_ENTRY: %v", no)
	}
	if !bytes.Equal(gid[:16], p.addr[:]) {
		t.Errorf("GID 0 = %x, want %x", gid[:16], p.addr)
	}
	if _, no := p.ioctl(3, 0); no != syscall.EPROTONOSUPPORT {
		t.Errorf("CQ_CREATE = %v, want EPROTONOSUPPORT", no)
	}
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8) + seed
	}
}

// want checks a completion.
func want(t *testing.T, w wc, id uint64, status, opcode uint32) {
	t.Helper()
	if w.id != id || w.status != status || status == 0 && w.opcode != opcode {
		t.Fatalf("completion = %+v, want id %d, status %d, opcode %d", w, id, status, opcode)
	}
}

func TestWrite(t *testing.T) {
	const size = 300_000
	a, b := connected(t, 2, size)
	fill(a.mem, 1)
	a.post(a.sendWR(5, 0, sendSignaled, mr.AddrOf(b.mem), uint64(b.rkey), size))
	want(t, a.wait(a.cring), 5, 0, 1)
	if !bytes.Equal(a.mem, b.mem) {
		t.Error("the memory of the peer differs after a WRITE")
	}
}

func TestSendAndRead(t *testing.T) {
	const size = 200_001
	a, b := connected(t, 2, size)
	for i := range 50 {
		fill(a.mem, byte(i))
		b.postRecv(uint64(100+i), 0, size)
		a.post(a.sendWR(uint64(i), 3, sendSignaled, 0, 0, size))
		w := b.wait(b.cring)
		want(t, w, uint64(100+i), 0, 128)
		if w.len != size || w.flags != wcFlagImm || w.extra != 0xabcd || w.qpn != b.qpn {
			t.Fatalf("completion of the receive = %+v", w)
		}
		want(t, a.wait(a.cring), uint64(i), 0, 0)
		if !bytes.Equal(a.mem, b.mem) {
			t.Fatalf("message %d: the memory of the receiver differs", i)
		}
		fill(b.mem, byte(i+100)) // the program changes it without notice
		a.post(a.sendWR(7, 4, sendSignaled, mr.AddrOf(b.mem), uint64(b.rkey), size))
		want(t, a.wait(a.cring), 7, 0, 2)
		if !bytes.Equal(a.mem, b.mem) {
			t.Fatalf("READ %d returned other bytes", i)
		}
	}
}

func TestAtomics(t *testing.T) {
	a, b := connected(t, 2, 4096)
	for i := range uint64(10) {
		wr := a.sendWR(i, 6, sendSignaled, mr.AddrOf(b.mem), 0, 8)
		le.PutUint64(wr[32:], 3) // added
		le.PutUint32(wr[48:], b.rkey)
		a.post(wr)
		want(t, a.wait(a.cring), i, 0, 4)
		if v := le.Uint64(a.mem); v != 3*i {
			t.Fatalf("FETCH_ADD returned %d, want %d", v, 3*i)
		}
	}
	if v := le.Uint64(b.mem); v != 30 {
		t.Errorf("the counter is %d, want 30", v)
	}
}

// A receive is posted without a call, so the engine must look at the ring when it needs one.
func TestReceiverNotReady(t *testing.T) {
	a, b := connected(t, 2, 4096)
	a.post(a.sendWR(1, 2, sendSignaled, 0, 0, 100))
	time.Sleep(5 * time.Millisecond)
	b.postRecv(2, 0, 4096)
	want(t, b.wait(b.cring), 2, 0, 128)
	want(t, a.wait(a.cring), 1, 0, 0)
}

func TestBadKey(t *testing.T) {
	a, b := connected(t, 2, 4096)
	a.post(a.sendWR(1, 0, 0, mr.AddrOf(b.mem), uint64(b.rkey)+1, 64))
	want(t, a.wait(a.cring), 1, 10, 0)
	a.postRecv(9, 0, 10)
	a.post(a.sendWR(2, 0, 0, mr.AddrOf(b.mem), uint64(b.rkey), 64))
	seen := map[uint64]uint32{}
	for range 2 {
		w := a.wait(a.cring)
		seen[w.id] = w.status
	}
	if seen[2] != 5 || seen[9] != 5 {
		t.Errorf("statuses after an error = %v, want 5 (flushed) for 2 and 9", seen)
	}
}

func TestBadLocalKey(t *testing.T) {
	a, b := connected(t, 2, 4096)
	wr := a.sendWR(1, 0, 0, mr.AddrOf(b.mem), uint64(b.rkey), 64)
	le.PutUint32(wr[208+12:], 12345)
	a.post(wr)
	want(t, a.wait(a.cring), 1, 4, 0)
}

// Programs post messages that are too long, or too short for an atomic.
func TestBadLength(t *testing.T) {
	a, b := connected(t, 2, 4096)
	wr := a.sendWR(1, 6, sendSignaled, mr.AddrOf(b.mem), 0, 9)
	le.PutUint32(wr[48:], b.rkey)
	a.post(wr)
	want(t, a.wait(a.cring), 1, 1, 0)

	p := pair(t, testbed.Config{})
	a, b = p[0].setup(4, 8192), p[1].setup(4, 8192)
	a.connect(nil, 4)
	_, num := a.createAH(a.pd, b.addr, 64)
	wr = a.sendWR(2, 2, sendSignaled, 0, 0, 8192)
	copy(wr[36:40], num)
	a.post(wr)
	want(t, a.wait(a.cring), 2, 1, 0)
}

func TestDatagram(t *testing.T) {
	p := pair(t, testbed.Config{})
	a, b := p[0].setup(4, 8192), p[1].setup(4, 8192)
	a.connect(nil, 4)
	b.connect(nil, 4)
	_, num := a.createAH(a.pd, b.addr, 64)
	fill(a.mem, 3)
	b.postRecv(2, 0, 8192)
	wr := a.sendWR(1, 2, sendSignaled, 0, 0, 1000)
	le.PutUint32(wr[24:], b.qpn)
	le.PutUint32(wr[28:], 0x1234)
	copy(wr[36:40], num)
	a.post(wr)
	want(t, a.wait(a.cring), 1, 0, 0)
	w := b.wait(b.cring)
	want(t, w, 2, 0, 128)
	if w.len != 1040 || w.src != a.qpn || w.flags&wcFlagGRH == 0 ||
		!bytes.Equal(b.mem[40:1040], a.mem[:1000]) {
		t.Errorf("completion = %+v, or the payload differs", w)
	}
	sl := uint8(slIPv6)
	if b.addr.IsIPv4() {
		sl = slIPv4
	}
	if w.sl != sl {
		t.Errorf("sl = %d, want %d, the kind of the network header", w.sl, sl)
	}
}

// A route of RoCE needs a GRH. qperf without rdma_cm does not set one, and gets EINVAL as from the
// kernel.
func TestRouteWithoutGRH(t *testing.T) {
	p := pair(t, testbed.Config{})
	a, b := p[0].setup(2, 4096), p[1].setup(2, 4096)
	a.modify(maskState|maskPKeyIndex|maskPort|maskAccess, 1, nil, 0)
	const mask = maskState | maskAV | maskPathMTU | maskDestQPN | maskRQPSN | maskMaxDestRdAtomic |
		maskMinRNRTimer
	body := a.modifyBody(mask, 2, b, 77)
	const global, port = 30, 31 // offsets in the route
	for _, at := range []int{global, port} {
		bad := bytes.Clone(body)
		bad[at] = 0
		if _, _, no := a.try(cmdModifyQP, bad, 0, 0); no != syscall.EINVAL {
			t.Errorf("without byte %d: %v, want EINVAL", at, no)
		}
	}
	a.do(cmdModifyQP, body, 0, 0)
}

// MODIFY_QP needs all attributes of a transition, and refuses others, as the kernel does.
func TestModifyMasks(t *testing.T) {
	p := pair(t, testbed.Config{})
	b := p[1].setup(2, 4096)
	const (
		toRTR = maskState | maskToRTR | maskMaxDestRdAtomic | maskMinRNRTimer
		toRTS = maskState | maskToRTS
	)
	steps := []struct {
		state    uint8
		required uint32
		optional uint32
	}{
		{1, maskState | maskToInit, 0},
		{1, maskState, maskToInit},
		{2, toRTR, maskPKeyIndex | maskAccess},
		{3, toRTS, maskCurState | maskAccess | maskPathMig | maskMinRNRTimer},
		{3, maskState, maskCurState | maskAccess | maskPathMig | maskMinRNRTimer},
		{4, maskState, maskSQDNotify},
		{6, maskState, 0},
		{6, maskState, 0},
		{0, maskState, 0},
	}
	q := p[0].setup(2, 4096)
	if _, _, no := q.try(cmdModifyQP, q.modifyBody(maskState, 6, nil, 0), 0, 0); no == 0 {
		t.Error("MODIFY_QP from RESET to ERR succeeded")
	}
	from := uint8(0)
	const curState = 97 // offset
	for _, s := range steps {
		try := func(mask uint32, current uint8) syscall.Errno {
			body := q.modifyBody(mask, s.state, b, 77)
			body[curState] = current
			_, _, no := q.try(cmdModifyQP, body, 0, 0)
			return no
		}
		for bit := uint32(maskCurState); bit <= maskDestQPN; bit <<= 1 {
			bad := s.required ^ bit
			if bit&s.optional != 0 {
				continue
			}
			if no := try(bad, from); no != syscall.EINVAL {
				t.Errorf("%d to %d with mask %#x: %v, want EINVAL", from, s.state, bad, no)
			}
		}
		if no := try(s.required|maskCurState, from+1); no != syscall.EINVAL {
			t.Errorf("%d to %d, claimed to be in %d: %v, want EINVAL", from, s.state, from+1, no)
		}
		if no := try(s.required|s.optional, from); no != 0 {
			t.Fatalf("%d to %d with mask %#x: %v", from, s.state, s.required|s.optional, no)
		}
		from = s.state
	}
}

// A QP accepts access flags that concern regions only, and returns them.
func TestAccessFlagsOfQP(t *testing.T) {
	a := pair(t, testbed.Config{})[0].setup(2, 4096)
	const access = uint32(roce.LocalWrite|roce.RemoteWrite|roce.MWBind|roce.ZeroBased) |
		1<<20 // relaxed ordering
	body := a.modifyBody(maskState|maskToInit, 1, nil, 0)
	le.PutUint32(body[88:], access)
	a.do(cmdModifyQP, body, 0, 0)
	out, _ := a.do(cmdQueryQP, enc(uint64(0), a.qp, uint32(0)), 128, 0)
	if got := le.Uint32(out[100:]); got != access {
		t.Errorf("access flags = %#x, want %#x", got, access)
	}
}

// The hop limit of routes to one host is that of the host, whatever the program sets.
func TestHopLimit(t *testing.T) {
	p := pair(t, testbed.Config{})
	a, b := p[0].setup(2, 4096), p[1].setup(2, 4096)
	a.modify(maskState|maskToInit, 1, nil, 0)
	body := a.modifyBody(maskState|maskToRTR|maskMaxDestRdAtomic|maskMinRNRTimer, 2, b, 77)
	const hopLimit = 25 // offset
	body[hopLimit] = 1
	a.do(cmdModifyQP, body, 0, 0)
	out, _ := a.do(cmdQueryQP, enc(uint64(0), a.qp, uint32(0)), 128, 0)
	if out[hopLimit] != roce.DefaultHopLimit {
		t.Errorf("hop limit of the QP = %d, want %d", out[hopLimit], roce.DefaultHopLimit)
	}
	group := roce.GID{0: 0xff, 1: 0x0e, 15: 9}
	for _, c := range []struct {
		to   roce.GID
		want uint8
	}{{b.addr, roce.DefaultHopLimit}, {group, 3}} {
		_, number := a.createAH(a.pd, c.to, 3)
		var path *roce.Path
		a.dev.do(func() { path = a.dev.ahs[le.Uint32(number)].ah.Path() })
		if got := path.Address().HopLimit; got != c.want {
			t.Errorf("hop limit of the AH of %v = %d, want %d", c.to, got, c.want)
		}
	}
}

package uverbs

import (
	"bytes"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
	"golang.org/x/sys/unix"
)

// channel creates a completion channel and returns its descriptor.
func (p *program) channel() int32 {
	p.t.Helper()
	out, _ := p.do(cmdCreateCompChannel, enc(uint64(0)), 4, 0)
	fd := int32(le.Uint32(out))
	p.t.Cleanup(func() { _ = unix.Close(int(fd)) })
	return fd
}

// async opens the descriptor for asynchronous events.
func (p *program) async() int {
	p.t.Helper()
	data, no := p.ioctl(objectAsyncEvent, methodAsyncAlloc, iattr{id: 0})
	if no != 0 {
		p.t.Fatalf("ASYNC_EVENT_ALLOC: %v", no)
	}
	fd := int(data[0])
	p.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// read reads an event of n bytes.
func (p *program) read(fd, n int) []byte {
	p.t.Helper()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	b := make([]byte, n)
	for end := time.Now().Add(20 * time.Second); ; {
		ready, err := unix.Poll(fds, 1000)
		if ready == 1 {
			break
		}
		if err != nil && err != unix.EINTR || time.Now().After(end) {
			p.t.Fatalf("no event: %v", err)
		}
	}
	if got, err := unix.Read(fd, b); err != nil || got != n {
		p.t.Fatalf("Read() = %d, %v, want %d", got, err, n)
	}
	return b
}

func TestCompletionChannel(t *testing.T) {
	p := pair(t, testbed.Config{})
	a, b := p[0].setup(2, 4096), p[1].setup(2, 4096)
	fd := b.channel()
	const user = 0x123456789a
	b.cq, b.cring = b.program.cq(10, fd, user)
	out, info := b.do(cmdCreateQP,
		enc(uint64(0), uint64(7), b.pd, b.cq, b.cq, uint32(0), uint32(20),
			uint32(20), uint32(2), uint32(2), uint32(64), uint8(0), uint8(2), uint8(0), uint8(0)),
		32,
		32)
	b.qp, b.qpn = le.Uint32(out), le.Uint32(out[4:])
	b.rq, b.sq = b.mmap(info), b.mmap(info[16:])
	a.connect(b, 2)
	b.connect(a, 2)
	for i, solicited := range []uint32{0, 1, 0} {
		b.do(cmdReqNotifyCQ, enc(b.cq, solicited), 0, 0)
		b.postRecv(uint64(i), 0, 100)
		a.post(a.sendWR(1, 2, sendSignaled|sendSolicited, 0, 0, 10))
		if ev := le.Uint64(b.read(int(fd), 8)); ev != user {
			t.Fatalf("event of CQ %#x, want %#x", ev, user)
		}
		want(t, b.wait(b.cring), uint64(i), 0, 128)
	}
	// One event is not read: the answer of DESTROY_CQ must not count it.
	b.do(cmdReqNotifyCQ, enc(b.cq, uint32(0)), 0, 0)
	b.postRecv(9, 0, 100)
	a.post(a.sendWR(1, 2, sendSignaled, 0, 0, 10))
	b.wait(b.cring)
	if _, _, no := b.try(cmdDestroyCQ, enc(uint64(0), b.cq, uint32(0)), 8, 0); no != syscall.EBUSY {
		t.Errorf("DESTROY_CQ in use = %v, want EBUSY", no)
	}
	b.do(cmdDestroyQP, enc(uint64(0), b.qp, uint32(0)), 4, 0)
	out, _ = b.do(cmdDestroyCQ, enc(uint64(0), b.cq, uint32(0)), 8, 0)
	if n := le.Uint32(out); n != 3 {
		t.Errorf("comp_events_reported = %d, want 3", n)
	}
}

// Completions that become visible together cause one event for each request in between.
func TestRequestsBetweenCompletions(t *testing.T) {
	p := pair(t, testbed.Config{})[0]
	fd := p.channel()
	const user, requests = 5, 3
	h, _ := p.cq(10, fd, user)
	q := p.ctx.objects[h].(*completionQueue)
	p.dev.do(func() {
		for range requests {
			q.notify.Store(notifyAny)
			q.publish(&qp.WC{})
			q.publish(&qp.WC{})
		}
	})
	for range requests {
		if ev := le.Uint64(p.read(int(fd), 8)); ev != user {
			t.Fatalf("event of CQ %#x, want %#x", ev, user)
		}
	}
	if n := q.events.Load(); n != requests {
		t.Errorf("%d events, want %d", n, requests)
	}
}

// CQs that complete in one step send their events in that order.
func TestOrderOfEvents(t *testing.T) {
	both := pair(t, testbed.Config{})
	p, peer := both[0], both[1].setup(2, 4096)
	fd := p.channel()
	q := &queues{program: p, pd: p.pd()}
	sends, _ := p.cq(10, fd, 1)
	recvs, _ := p.cq(10, fd, 2)
	out, info := p.do(cmdCreateQP,
		enc(uint64(0), uint64(7), q.pd, sends, recvs, uint32(0), uint32(20),
			uint32(20), uint32(2), uint32(2), uint32(64), uint8(0), uint8(2), uint8(0), uint8(0)),
		32,
		32)
	q.qp, q.qpn = le.Uint32(out), le.Uint32(out[4:])
	q.rq, q.sq = q.mmap(info), q.mmap(info[16:])
	q.connect(peer, 2)
	q.postRecv(1, 0, 0)
	for _, h := range []uint32{sends, recvs} {
		p.do(cmdReqNotifyCQ, enc(h, uint32(0)), 0, 0)
	}
	// The work request of the ring and the receive are flushed.
	q.sq.post(q.sendWR(2, 2, sendSignaled, 0, 0, 0))
	var want []uint64
	p.dev.do(func() {
		inner := p.ctx.objects[q.qp].(*queuePair).inner
		inner.RingDoorbell()
		if err := inner.Modify(0, &qp.Attr{State: qp.Err}, qp.AttrState); err != nil {
			t.Error(err)
		}
		for _, c := range p.dev.pending {
			want = append(want, c.user)
		}
	})
	if len(want) != 2 {
		t.Fatalf("CQs %v complete in the step, want two", want)
	}
	for _, w := range want {
		if ev := le.Uint64(p.read(int(fd), 8)); ev != w {
			t.Errorf("event of CQ %d, want that of CQ %d", ev, w)
		}
	}
}

// A full CQ breaks its QPs, also if completions come one by one, so that only the ring is full.
func TestFullCQ(t *testing.T) {
	both := pair(t, testbed.Config{})
	p, peer := both[0], both[1].setup(2, 4096)
	fd := p.async()
	q := p.setup(2, 4096)
	small, ring := p.cq(2, -1, 9)
	out, info := p.do(cmdCreateQP,
		enc(uint64(0), uint64(7), q.pd, small, small, uint32(0), uint32(20),
			uint32(20), uint32(2), uint32(2), uint32(64), uint8(0), uint8(2), uint8(0), uint8(0)),
		32,
		32)
	q.qp, q.qpn = le.Uint32(out), le.Uint32(out[4:])
	q.rq, q.sq = q.mmap(info), q.mmap(info[16:])
	q.connect(peer, 2)
	peer.connect(q, 2)
	own := p.ctx.objects[q.qp].(*queuePair)
	out, _ = p.do(cmdCreateQP, // not used
		enc(uint64(0), uint64(8), q.pd, small, small, uint32(0), uint32(20),
			uint32(20), uint32(2), uint32(2), uint32(64), uint8(0), uint8(2), uint8(0), uint8(0)),
		32,
		32)
	unused := p.ctx.objects[le.Uint32(out)].(*queuePair)
	remote := mr.AddrOf(peer.mem)
	for id := range uint64(5) {
		q.post(q.sendWR(id, 0, sendSignaled, remote, uint64(peer.rkey), 8))
		for done, end := false, time.Now().Add(20*time.Second); !done; {
			p.dev.do(func() { done = own.sq.waiting() == 0 && own.inner.SQLen() == 0 })
			if time.Now().After(end) {
				t.Fatalf("work request %d does not complete", id)
			}
		}
	}
	var kinds []uint32
	for range 2 {
		kinds = append(kinds, le.Uint32(p.read(fd, 16)[8:]))
	}
	if !slices.Equal(kinds, []uint32{eventCQErr, eventQPFatal}) {
		t.Errorf("asynchronous events %d, want CQ_ERR and QP_FATAL", kinds)
	}
	if s := own.inner.State(); s != qp.Err {
		t.Errorf("the QP is in state %v, want ERR", s)
	}
	if s := unused.inner.State(); s != qp.Reset {
		t.Errorf("the QP that is not used is in state %v, want RESET", s)
	}
	want(t, p.wait(ring), 0, 0, 1)
}

// takeBack reads a limited number of events: a program may write to its channel without end.
func TestEventsWithoutEnd(t *testing.T) {
	const size, extra = 8, 512
	ch, err := newChannel()
	if err != nil {
		t.Fatal(err)
	}
	defer ch.close()
	if _, err := unix.FcntlInt(uintptr(ch.write), unix.F_SETPIPE_SZ, 2*maxUnread*size); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(maxUnread + extra) {
		if !ch.send(enc(i)) {
			t.Fatalf("send() of event %d = false", i)
		}
	}
	if n := ch.takeBack(1<<63, size); n != 0 {
		t.Errorf("takeBack() = %d, want 0", n)
	}
	b := make([]byte, size)
	if _, err := unix.Read(ch.read, b); err != nil || le.Uint64(b) != maxUnread {
		t.Errorf("next event %d, %v, want %d, which was not read", le.Uint64(b), err, maxUnread)
	}
}

func TestSharedReceiveQueue(t *testing.T) {
	p := pair(t, testbed.Config{})
	a, b := p[0].setup(2, 4096), p[1].setup(2, 4096)
	async := b.async()
	out, info := b.do(cmdCreateSRQ, enc(uint64(0), uint64(99), b.pd, uint32(10), uint32(1),
		uint32(3)), 16, 24)
	srq := le.Uint32(out)
	b.rq = b.mmap(info)
	out, info = b.do(cmdCreateQP, enc(uint64(0), uint64(7), b.pd, b.cq, b.cq, srq, uint32(20),
		uint32(0), uint32(2), uint32(0), uint32(64), uint8(0), uint8(2), uint8(1), uint8(0)), 32,
		32)
	b.qp, b.qpn = le.Uint32(out), le.Uint32(out[4:])
	b.sq = b.mmap(info[16:])
	a.connect(b, 2)
	b.connect(a, 2)
	for i := range 5 {
		b.postRecv(uint64(i), i*100, 100)
	}
	for i := range 5 {
		fill(a.mem[:100], byte(i))
		a.post(a.sendWR(1, 2, sendSignaled, 0, 0, 100))
		want(t, b.wait(b.cring), uint64(i), 0, 128)
		want(t, a.wait(a.cring), 1, 0, 0)
		if !bytes.Equal(a.mem[:100], b.mem[i*100:][:100]) {
			t.Errorf("receive %d has other bytes", i)
		}
	}
	ev := b.read(async, 16)
	if le.Uint64(ev) != 99 || le.Uint32(ev[8:]) != eventSRQLimit {
		t.Errorf("event = %x, want SRQ_LIMIT_REACHED of 99", ev)
	}
	out, _ = b.do(cmdQuerySRQ, enc(uint64(0), srq, uint32(0)), 16, 0)
	if n := le.Uint32(out[8:]); n != 0 {
		t.Errorf("limit after the event = %d, want 0", n)
	}
	if _, _, no := b.try(cmdDestroySRQ, enc(uint64(0), srq, uint32(0)), 4, 0); no != syscall.EBUSY {
		t.Errorf("DESTROY_SRQ in use = %v, want EBUSY", no)
	}
	b.do(cmdDestroyQP, enc(uint64(0), b.qp, uint32(0)), 4, 0)
	out, _ = b.do(cmdDestroySRQ, enc(uint64(0), srq, uint32(0)), 4, 0)
	if n := le.Uint32(out); n != 1 {
		t.Errorf("events_reported = %d, want 1", n)
	}
}

// Receives that are in an SRQ survive its resize.
func TestResizeSRQ(t *testing.T) {
	p := pair(t, testbed.Config{})
	a, b := p[0].setup(2, 4096), p[1].setup(2, 4096)
	out, info := b.do(cmdCreateSRQ, enc(uint64(0), uint64(99), b.pd, uint32(10), uint32(1),
		uint32(0)), 16, 24)
	srq := le.Uint32(out)
	b.rq = b.mmap(info)
	out, _ = b.do(cmdCreateQP, enc(uint64(0), uint64(7), b.pd, b.cq, b.cq, srq, uint32(20),
		uint32(0), uint32(2), uint32(0), uint32(64), uint8(0), uint8(2), uint8(1), uint8(0)), 32,
		32)
	b.qp, b.qpn = le.Uint32(out), le.Uint32(out[4:])
	a.connect(b, 2)
	b.connect(a, 2)
	next := b.mem[4000:4016]
	resize := func(depth uint32) syscall.Errno {
		_, no := b.ioctl(objectDevice, methodInvokeWrite,
			iattr{id: attrCoreIn, in: enc(srq, uint32(srqMaxWR), depth, uint32(0))},
			iattr{id: attrUHWIn, in: enc(mr.AddrOf(next))},
			iattr{id: attrWriteCmd, in: enc(uint32(cmdModifySRQ))})
		return no
	}
	receive := func(id uint64) {
		t.Helper()
		fill(a.mem[:100], byte(id))
		a.post(a.sendWR(1, 2, sendSignaled, 0, 0, 100))
		want(t, b.wait(b.cring), id, 0, 128)
		want(t, a.wait(a.cring), 1, 0, 0)
		if !bytes.Equal(a.mem[:100], b.mem[id*100:][:100]) {
			t.Errorf("receive %d has other bytes", id)
		}
	}
	for i := range 10 {
		b.postRecv(uint64(i), i*100, 100)
	}
	for i := range uint64(4) {
		receive(i)
	}
	if no := resize(3); no != syscall.EINVAL {
		t.Errorf("MODIFY_SRQ to 3 with 6 receives = %v, want EINVAL", no)
	}
	if no := resize(100); no != 0 {
		t.Fatalf("MODIFY_SRQ = %v", no)
	}
	b.rq = b.mmap(next)
	for i := 10; i < 30; i++ {
		b.postRecv(uint64(i), i*100, 100)
	}
	for i := uint64(4); i < 30; i++ {
		receive(i)
	}
	out, _ = b.do(cmdQuerySRQ, enc(uint64(0), srq, uint32(0)), 16, 0)
	if n := le.Uint32(out); n < 100 {
		t.Errorf("max_wr = %d, want at least 100", n)
	}
}

// A program that dies leaves peers that see errors, not a hang.
func TestClose(t *testing.T) {
	a, b := connected(t, 2, 4096)
	b.ctx.Close()
	if n := len(b.dev.contexts); n != 0 {
		t.Errorf("%d contexts after Close, want 0", n)
	}
	if _, _, no := b.try(cmdAllocPD, enc(uint64(0)), 4, 0); no != syscall.EIO {
		t.Errorf("ALLOC_PD after Close = %v, want EIO", no)
	}
	a.post(a.sendWR(1, 0, 0, mr.AddrOf(b.mem), uint64(b.rkey), 64))
	if w := a.wait(a.cring); w.status == 0 {
		t.Error("a WRITE to a closed program succeeded")
	}
}

// Some programs send the L_Key of a region to their peer.
func TestOneKey(t *testing.T) {
	a, b := connected(t, 2, 4096)
	if a.lkey != a.rkey {
		t.Errorf("L_Key %#x, R_Key %#x: different", a.lkey, a.rkey)
	}
	b.post(b.sendWR(1, 0, sendSignaled, mr.AddrOf(a.mem), uint64(a.lkey), 64))
	want(t, b.wait(b.cring), 1, 0, 1)
	const local = 1
	if _, _, rkey := a.reg(a.pd, a.mem, local); rkey != 0 {
		t.Errorf("R_Key %#x without remote access", rkey)
	}
}

// A program unmaps registered memory.
func TestUnmapped(t *testing.T) {
	a, b := connected(t, 2, 1<<16)
	page := func() []byte {
		m, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	gone := page()
	addr := mr.AddrOf(gone)
	_, lkey, rkey := a.reg(a.pd, gone, 15)
	if err := unix.Munmap(gone); err != nil {
		t.Fatal(err)
	}
	// A WRITE to it is lost, and a SEND from it fails.
	b.post(b.sendWR(3, 0, sendSignaled, addr, uint64(rkey), 64))
	want(t, b.wait(b.cring), 3, 0, 1)
	wr := a.sendWR(1, 0, 0, mr.AddrOf(b.mem), uint64(b.rkey), 64)
	copy(wr[208:], enc(addr, uint32(64), lkey))
	a.post(wr)
	want(t, a.wait(a.cring), 1, 4, 0)
	if _, _, no := a.try(cmdRegMR, enc(uint64(0), addr, uint64(4096), addr, a.pd, uint32(15)), 12,
		0); no != syscall.EFAULT {
		t.Errorf("REG_MR of unmapped memory = %v, want EFAULT", no)
	}
}

// Destroying an object that does not exist, or no longer exists, fails.
func TestDestroyTwice(t *testing.T) {
	p := pair(t, testbed.Config{})[0]
	pd := p.pd()
	cq, _ := p.cq(10, -1, 1)
	h, _, _ := p.reg(pd, make([]byte, 64), 1)
	const none = 99
	for _, c := range []struct {
		name         string
		command, obj uint32
		out          int
	}{
		{"DEREG_MR", cmdDeregMR, h, 0},
		{"DESTROY_CQ", cmdDestroyCQ, cq, 8},
		{"DEALLOC_PD", cmdDeallocPD, pd, 0},
		{"DESTROY_QP", cmdDestroyQP, none, 4},
		{"DESTROY_SRQ", cmdDestroySRQ, none, 4},
		{"DESTROY_AH", cmdDestroyAH, none, 0},
	} {
		body := enc(c.obj)
		if c.out > 0 {
			body = enc(uint64(0), c.obj, uint32(0))
		}
		if c.obj != none {
			p.do(c.command, body, c.out, 0)
		}
		if _, _, no := p.try(c.command, body, c.out, 0); no != syscall.ENOENT {
			t.Errorf("%s without an object = %v, want ENOENT", c.name, no)
		}
	}
}

func TestResizeCQ(t *testing.T) {
	a, b := connected(t, 2, 4096)
	const n = 15
	for i := range n {
		a.post(a.sendWR(uint64(i), 0, sendSignaled, mr.AddrOf(b.mem), uint64(b.rkey), 8))
	}
	a.post(a.sendWR(n, 0, 0, mr.AddrOf(b.mem)+8, uint64(b.rkey), 8))
	for end := time.Now().Add(20 * time.Second); a.sq.word(256).Load() != n+1; {
		if time.Now().After(end) {
			t.Fatal("the send queue does not become empty")
		}
		time.Sleep(time.Millisecond)
	}
	if _, _, no := a.try(cmdResizeCQ, enc(uint64(0), a.cq, uint32(3)), 8,
		16); no != syscall.EINVAL {
		t.Errorf("RESIZE_CQ to 3 with %d completions = %v, want EINVAL", n, no)
	}
	_, info := a.do(cmdResizeCQ, enc(uint64(0), a.cq, uint32(1000)), 8, 16)
	a.cring = a.mmap(info)
	for i := range n {
		want(t, a.wait(a.cring), uint64(i), 0, 1)
	}
	a.post(a.sendWR(99, 0, sendSignaled, mr.AddrOf(b.mem), uint64(b.rkey), 8))
	want(t, a.wait(a.cring), 99, 0, 1)
}

func TestRereg(t *testing.T) {
	a, b := connected(t, 2, 8192)
	out, _ := b.do(cmdReregMR, enc(uint64(0), b.mr, uint32(reregAccess), uint64(0), uint64(0),
		uint64(0), uint32(0), uint32(5)), 8, 0) // local write, remote read
	rkey := le.Uint32(out[4:])
	a.post(a.sendWR(1, 4, sendSignaled, mr.AddrOf(b.mem), uint64(rkey), 100))
	want(t, a.wait(a.cring), 1, 0, 2)
	a.post(a.sendWR(2, 0, sendSignaled, mr.AddrOf(b.mem), uint64(rkey), 100))
	want(t, a.wait(a.cring), 2, 10, 0)
}

// The value of an ATOMIC WRITE is in the element of the queue.
func TestAtomicWrite(t *testing.T) {
	a, b := connected(t, 2, 4096)
	wr := a.sendWR(1, 15, sendSignaled, mr.AddrOf(b.mem), uint64(b.rkey), 8)
	le.PutUint64(wr[208:], 0x1122334455667788)
	a.post(wr)
	want(t, a.wait(a.cring), 1, 0, 9)
	if v := le.Uint64(b.mem); v != 0x1122334455667788 {
		t.Errorf("memory = %#x", v)
	}
}

// Receives of a destroyed QP do not complete: the program may have freed what their IDs name.
func TestReceivesOfDestroyedQP(t *testing.T) {
	_, b := connected(t, 2, 4096)
	for i := range uint64(3) {
		b.postRecv(i, 0, 100)
	}
	b.do(cmdDestroyQP, enc(uint64(0), b.qp, uint32(0)), 4, 0)
	if w, ok := b.cring.poll(); ok {
		t.Errorf("completion after DESTROY_QP: %+v", w)
	}
}

func TestPostBeforeRTS(t *testing.T) {
	p := pair(t, testbed.Config{})[0]
	q := p.setup(2, 4096)
	cmd := enc(uint32(cmdPostSend), uint16(8), uint16(1), uint64(0), q.qp, uint32(0), uint32(0),
		uint32(128))
	if _, no := q.ctx.Write(q.call, mr.AddrOf(cmd), uint64(len(cmd))); no != syscall.EINVAL {
		t.Errorf("doorbell in RESET = %v, want EINVAL", no)
	}
}

// A PD cannot go before its AHs, or a QP before it has left its groups, as in the kernel.
func TestDestroyInUse(t *testing.T) {
	p := pair(t, testbed.Config{})
	q := p[0].setup(4, 4096)
	q.connect(nil, 4)
	pd := q.program.pd()
	ah, _ := q.createAH(pd, p[1].addr, 64)
	if _, _, no := q.try(cmdDeallocPD, enc(pd), 0, 0); no != syscall.EBUSY {
		t.Errorf("DEALLOC_PD with an AH = %v, want EBUSY", no)
	}
	q.do(cmdDestroyAH, enc(ah), 0, 0)
	q.do(cmdDeallocPD, enc(pd), 0, 0)

	group := enc(uint8(0xff), uint8(0x0e), make([]byte, 14), q.qp, uint16(0), uint16(0))
	q.do(cmdAttachMcast, group, 0, 0)
	q.do(cmdAttachMcast, group, 0, 0)
	destroy := enc(uint64(0), q.qp, uint32(0))
	if _, _, no := q.try(cmdDestroyQP, destroy, 4, 0); no != syscall.EBUSY {
		t.Errorf("DESTROY_QP in a group = %v, want EBUSY", no)
	}
	q.do(cmdDetachMcast, group, 0, 0)
	q.do(cmdDestroyQP, destroy, 4, 0)
}

// Extended CQs have no flags, such as IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN.
func TestCQFlags(t *testing.T) {
	p := pair(t, testbed.Config{})[0]
	for _, c := range []struct {
		compMask, flags uint32
		want            syscall.Errno
	}{{0, 0, 0}, {0, 2, syscall.EOPNOTSUPP}, {1, 0, syscall.EINVAL}} {
		_, _, no := p.try(cmdExtended|cmdCreateCQ, enc(uint64(1), uint32(10), uint32(0), int32(-1),
			c.compMask, c.flags, uint32(0)), 16, 16)
		if no != c.want {
			t.Errorf("CREATE_CQ with mask %d and flags %d = %v, want %v", c.compMask, c.flags, no,
				c.want)
		}
	}
}

//go:build interop

package interop_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/interop/lab"
	"github.com/gorxe/gorxe/roce"
)

// The ports of librdmacm's examples.
const (
	portCmatose = 7471
	portUdaddy  = 7174
	portNVMe    = 4420
)

// promptly bounds an answer that has nothing to wait for.
const promptly = 5 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// listen makes gorxe listen on its address of that IP version.
func (r *rig) listen(t *testing.T, v variant, port uint16) *roce.Listener {
	t.Helper()
	l, err := r.dev.Listen(netip.AddrPortFrom(r.HostAddr(v.v6), port), roce.ListenOptions{})
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// cmEnd is gorxe's side with a connection made by the connection manager.
type cmEnd struct {
	*gorxeEnd
	conn  *roce.Conn
	lossy bool

	keepAlive time.Duration
	path      roce.PathOptions
}

func newCMEnd(t *testing.T, r *rig, v variant, kind roce.QPType) *cmEnd {
	t.Helper()
	s := setting{kind: kind, v6: v.v6, mtu: v.mtu}
	s.setDefaults()
	return &cmEnd{gorxeEnd: newGorxeEnd(t, r, s), lossy: r.lossy}
}

func (c *cmEnd) dial(addr netip.Addr, port uint16) {
	c.t.Helper()
	conn, err := c.dev.Dial(within(c.t), netip.AddrPortFrom(addr, port), c.qp,
		roce.DialOptions{ConnectOptions: roce.ConnectOptions{
			MTU: c.s.mtu, KeepAlive: c.keepAlive, PathOptions: c.path,
		}})
	c.must(err)
	c.conn = conn
}

func (c *cmEnd) accept(l *roce.Listener) {
	c.t.Helper()
	req, err := l.Accept(within(c.t))
	c.must(err)
	c.conn, err = req.Accept(within(c.t), c.qp,
		roce.AcceptOptions{ConnectOptions: roce.ConnectOptions{KeepAlive: c.keepAlive}})
	c.must(err)
}

// often is the KeepAlive of connections that idle tests.
const often = 100 * time.Millisecond

// idle sends nothing until the peer has answered some keepalives. gorxe sends none before its first
// request if the peer has chosen a PSN above the limit of package qp, which 1 in 512 does.
func (c *cmEnd) idle() {
	c.t.Helper()
	const (
		want            = 10 // more unanswered ones would end the connection
		maxPSN roce.PSN = 0xff7fff
	)
	attr, err := c.qp.Query()
	c.must(err)
	if attr.SQPSN > maxPSN {
		c.t.Logf("no keepalives: gorxe's next PSN is %#x", attr.SQPSN)
		return
	}
	before := c.dev.Counters().KeepAlivesSent
	for end := time.Now().Add(patience); ; time.Sleep(often) {
		n := c.dev.Counters().KeepAlivesSent - before
		if n >= want || time.Now().After(end) || c.conn.Err() != nil {
			if n < want || c.conn.Err() != nil {
				c.t.Errorf("gorxe: %d keepalives, Err() = %v", n, c.conn.Err())
			}
			return
		}
	}
}

// ended waits until the peer has disconnected. On a lossy link its DREQ may be lost forever: it is
// not repeated once the program has ended.
func (c *cmEnd) ended() {
	c.t.Helper()
	select {
	case <-c.conn.Done():
	case <-time.After(patience):
		if !c.lossy {
			c.t.Fatalf("the peer does not disconnect")
		}
	}
	c.must(c.conn.Close())
}

// cmTool is an example of librdmacm in the guest, with gorxe's side implemented on package roce.
type cmTool struct {
	name            string
	port            uint16
	server          string
	client          string // with %s for gorxe's address
	active, passive func(t *testing.T, r *rig, v variant)
}

var cmTools = []cmTool{
	{"ucmatose", portCmatose, cmatose + " -b %s", cmatose + " -s %s", cmatoseClient, cmatoseServer},
	{"ucmatose -t", portCmatose, cmatose + " -b %s",
		fmt.Sprintf("%s -t %d", cmatose, kernelTOS) + " -s %s", classClient, classServer},
	{"rdma_client, rdma_server", portCmatose, "rdma_server -s %s", "rdma_client -s %s", rdmaClient,
		rdmaServer},
	{"rdma_client, rdma_server, keepalives", portCmatose, "rdma_server -s %s", "rdma_client -s %s",
		idleClient, idleServer},
	rstream(rsFew),
	{"udaddy", portUdaddy, udaddy + " -b %s", udaddy + " -s %s", udaddyClient, udaddyServer},
}

// TestConnections connects librdmacm's examples to gorxe and gorxe to them.
func TestConnections(t *testing.T) {
	perDevice(func(device int, suffix string) {
		vs := ofDevice(device, cmVariants())
		for _, c := range cmTools {
			play(t, c.name+suffix, vs, func(t *testing.T, r *rig, v variant) { c.run(t, r, v) })
		}
		play(t, "connection to a port without a listener"+suffix, vs, refusedPort)
		if device == lab.MaxMTU {
			play(t, "connection refused by the application", vs[:2], refusedByUser)
		}
		play(t, "NVMe/RDMA initiator"+suffix, onlyPassive(vs), nvmeInitiator)
	})
}

// cmVariants: the active side chooses the path MTU, and the kernel takes the largest that its
// device carries.
func cmVariants() []variant {
	out := []variant{{lab.MaxMTU, 4096, false, false}, {lab.MaxMTU, 4096, false, true},
		{lab.MaxMTU, 4096, true, false}, {lab.MaxMTU, 4096, true, true}}
	if !*coreFlag {
		out = append(out, variant{1500, 1024, false, false}, variant{1500, 1024, false, true},
			variant{1500, 1024, true, false}, variant{1500, 1024, true, true})
	}
	return out
}

func onlyActive(vs []variant) (out []variant) {
	for _, v := range vs {
		if !v.gorxePassive {
			out = append(out, v)
		}
	}
	return out
}

func onlyPassive(vs []variant) (out []variant) {
	for _, v := range vs {
		if v.gorxePassive {
			out = append(out, v)
		}
	}
	return out
}

func (c *cmTool) run(t *testing.T, r *rig, v variant) {
	var k *guestProgram
	if v.gorxePassive {
		// gorxe listens first. Its side then waits for the client, which must run concurrently.
		started := make(chan *guestProgram, 1)
		go func() {
			time.Sleep(100 * time.Millisecond)
			p, err := r.Guests[0].Start("sh", "-c", "exec "+fmt.Sprintf(c.client, r.HostAddr(v.v6)))
			if err != nil {
				t.Errorf("start %s: %v", c.client, err)
				close(started)
				return
			}
			started <- &guestProgram{p}
		}()
		c.passive(t, r, v)
		if k = <-started; k == nil {
			return
		}
	} else {
		k = r.guestProgram(t, fmt.Sprintf(c.server, r.Guests[0].Addr(v.v6)))
		r.awaitCM(t, int(c.port))
		c.active(t, r, v)
	}
	if out, err := k.wait(patience); err != nil {
		t.Errorf("the kernel's side: %v\n%s", err, out)
	}
}

// ucmatose with several connections: the server sends, the client sends as much back, the server
// disconnects.
const (
	cmConns = 5
	cmMsgs  = 20
	cmSize  = 3000
)

var cmatose = fmt.Sprintf("ucmatose -c %d -C %d -S %d", cmConns, cmMsgs, cmSize)

func cmatoseEnds(t *testing.T, r *rig, v variant) []*cmEnd {
	ends := make([]*cmEnd, cmConns)
	for i := range ends {
		ends[i] = newCMEnd(t, r, v, roce.RC)
		ends[i].recv(0, cmMsgs, 0, cmSize, cmSize)
	}
	return ends
}

func cmatoseClient(t *testing.T, r *rig, v variant) { cmatoseActive(t, r, v, roce.PathOptions{}) }

func cmatoseActive(t *testing.T, r *rig, v variant, path roce.PathOptions) {
	ends := cmatoseEnds(t, r, v)
	for _, e := range ends {
		e.path = path
		e.dial(r.Guests[0].Addr(v.v6), portCmatose)
	}
	for _, e := range ends {
		for _, w := range expect(t, "gorxe", e, recvQueue, 0, cmMsgs) {
			if w.size != cmSize {
				t.Errorf("a message of %d bytes, want %d", w.size, cmSize)
			}
		}
		e.post(work{op: roce.OpSend, n: cmMsgs, size: cmSize})
		e.sent(cmMsgs)
	}
	for _, e := range ends {
		e.ended()
	}
}

// sent waits for n SENDs. ucmatose disconnects as soon as it has every message. On a lossy link its
// last ACK may be lost, and the SENDs that it would have acknowledged are flushed. ucmatose's exit
// status shows that they arrived.
func (c *cmEnd) sent(n int) {
	c.t.Helper()
	if !c.lossy {
		expect(c.t, "gorxe", c, sendQueue, 0, n)
		return
	}
	got := statuses(c, sendQueue, n)
	tail := slices.IndexFunc(got, func(s string) bool { return s != success })
	if len(got) != n || (tail >= 0 &&
		slices.ContainsFunc(got[tail:], func(s string) bool { return s != flushed })) {
		c.t.Errorf("%d of %d SENDs: %q", len(got), n, got)
	}
}

func cmatoseServer(t *testing.T, r *rig, v variant) { cmatosePassive(t, r, v) }

// cmatosePassive returns the ends, whose connections are closed.
func cmatosePassive(t *testing.T, r *rig, v variant) []*cmEnd {
	l := r.listen(t, v, portCmatose)
	ends := cmatoseEnds(t, r, v)
	for _, e := range ends {
		e.accept(l)
	}
	// The client replies when it has heard from all.
	for _, e := range ends {
		e.post(work{op: roce.OpSend, n: cmMsgs, size: cmSize})
		expect(t, "gorxe", e, sendQueue, 0, cmMsgs)
	}
	for _, e := range ends {
		expect(t, "gorxe", e, recvQueue, 0, cmMsgs)
	}
	for _, e := range ends {
		e.must(e.conn.Close())
	}
	return ends
}

// rdma_client and rdma_server: one message of 16 bytes in each direction.
func rdmaClient(t *testing.T, r *rig, v variant) {
	e := newCMEnd(t, r, v, roce.RC)
	e.recv(0, 1, 0, 16, 0)
	e.dial(r.Guests[0].Addr(v.v6), portCmatose)
	e.post(work{op: roce.OpSend, size: 16})
	expect(t, "gorxe", e, sendQueue, 0, 1)
	expect(t, "gorxe", e, recvQueue, 0, 1)
	e.must(e.conn.Close())
}

func rdmaServer(t *testing.T, r *rig, v variant) {
	l := r.listen(t, v, portCmatose)
	e := newCMEnd(t, r, v, roce.RC)
	e.recv(0, 1, 0, 16, 0)
	e.accept(l)
	expect(t, "gorxe", e, recvQueue, 0, 1)
	e.post(work{op: roce.OpSend, size: 16})
	expect(t, "gorxe", e, sendQueue, 0, 1)
	e.ended()
}

// idleClient and idleServer are rdmaClient and rdmaServer that are idle before the first request of
// gorxe, and after it. The kernel must answer the keepalives in both cases.
func idleClient(t *testing.T, r *rig, v variant) {
	e := newCMEnd(t, r, v, roce.RC)
	e.keepAlive = often
	e.recv(0, 1, 0, 16, 0)
	e.dial(r.Guests[0].Addr(v.v6), portCmatose)
	e.idle()
	e.post(work{op: roce.OpSend, size: 16})
	expect(t, "gorxe", e, sendQueue, 0, 1)
	expect(t, "gorxe", e, recvQueue, 0, 1)
	e.must(e.conn.Close())
}

func idleServer(t *testing.T, r *rig, v variant) {
	l := r.listen(t, v, portCmatose)
	e := newCMEnd(t, r, v, roce.RC)
	e.keepAlive = often
	e.recv(0, 1, 0, 16, 0)
	e.accept(l)
	expect(t, "gorxe", e, recvQueue, 0, 1)
	e.idle()
	e.post(work{op: roce.OpSend, size: 16})
	expect(t, "gorxe", e, sendQueue, 0, 1)
	e.ended()
}

// udaddy: datagrams, each with the sender's QPN as immediate, to a QP that SIDR finds, and as many
// back.
var udaddy = fmt.Sprintf("udaddy -c 1 -C %d -S 1000", cmMsgs)

func udaddyClient(t *testing.T, r *rig, v variant) {
	e := newCMEnd(t, r, v, roce.UD)
	e.must(e.qp.Activate(roce.QKeyUDP))
	e.recv(0, cmMsgs, 0, 1000+roce.GRHLen, 2048)
	peer, err := r.dev.ResolveUD(within(t), netip.AddrPortFrom(r.Guests[0].Addr(v.v6), portUdaddy),
		nil)
	e.must(err)
	defer peer.AH.Close()
	e.sendTo(peer.AH, peer.QPN, peer.QKey)
	expect(t, "gorxe", e, sendQueue, 0, cmMsgs)
	for _, w := range expect(t, "gorxe", e, recvQueue, 0, cmMsgs) {
		if w.src != uint32(peer.QPN) || w.size != 1000+roce.GRHLen {
			t.Errorf("a reply of %d bytes from QP %#x, want %d from %#x", w.size, w.src,
				1000+roce.GRHLen, peer.QPN)
		}
	}
}

// sendTo sends what udaddy sends.
func (c *cmEnd) sendTo(ah *roce.AH, qpn roce.QPN, qkey roce.QKey) {
	c.t.Helper()
	for i := range cmMsgs {
		c.must(c.qp.PostSend(roce.SendWR{
			ID: uint64(i), Op: roce.OpSendImm, Flags: roce.Signaled,
			SGEs: []roce.SGE{c.mr.SGE(0, 1000)}, Imm: uint32(c.qp.QPN()),
			AH: ah, RemoteQPN: qpn, RemoteQKey: qkey,
		}))
	}
}

func udaddyServer(t *testing.T, r *rig, v variant) {
	e := newCMEnd(t, r, v, roce.UD)
	e.must(e.qp.Activate(roce.QKeyUDP))
	e.recv(0, cmMsgs, 0, 1000+roce.GRHLen, 2048)
	l, err := r.dev.ListenUD(netip.AddrPortFrom(r.HostAddr(v.v6), portUdaddy), roce.ListenOptions{})
	e.must(err)
	defer l.Close()
	req, err := l.Accept(within(t))
	e.must(err)
	e.must(req.AnswerUD(e.qp, nil))
	wcs := expect(t, "gorxe", e, recvQueue, 0, cmMsgs)
	ah, err := r.dev.CreateAH(within(t),
		roce.AHAttr{Remote: bth.GIDFromAddr(r.Guests[0].Addr(v.v6)), GIDIndex: &e.gid.Index})
	e.must(err)
	defer ah.Close()
	e.sendTo(ah, roce.QPN(wcs[0].imm), roce.QKeyUDP)
	expect(t, "gorxe", e, sendQueue, 0, cmMsgs)
}

// refusedPort expects a REJ with reason 8 at once.
func refusedPort(t *testing.T, r *rig, v variant) {
	if !v.gorxePassive {
		e := newCMEnd(t, r, v, roce.RC)
		_, err := r.dev.Dial(within(t), netip.AddrPortFrom(r.Guests[0].Addr(v.v6), 9), e.qp,
			roce.DialOptions{})
		var rej *roce.RejectError
		if !errors.As(err, &rej) || rej.Reason != 8 {
			t.Errorf("gorxe: %v, want a refusal with reason 8", err)
		}
		return
	}
	start := time.Now()
	out, err := r.guestProgram(t, fmt.Sprintf("ucmatose -s %s", r.HostAddr(v.v6))).wait(patience)
	if err == nil || !strings.Contains(out, "RDMA_CM_EVENT_REJECTED, error: 8") {
		t.Errorf("ucmatose: %v\n%s", err, out)
	}
	if d := time.Since(start); d > promptly<<slow {
		t.Errorf("the refusal took %v", d)
	}
}

// refusedByUser expects a REJ with reason 28.
func refusedByUser(t *testing.T, r *rig, v variant) {
	if !v.gorxePassive {
		// ucmatose rejects connections beyond its limit.
		k := r.guestProgram(t, fmt.Sprintf("ucmatose -c 1 -C 0 -b %s", r.Guests[0].Addr(v.v6)))
		r.awaitCM(t, portCmatose)
		first, second := newCMEnd(t, r, v, roce.RC), newCMEnd(t, r, v, roce.RC)
		first.dial(r.Guests[0].Addr(v.v6), portCmatose)
		first.ended()
		_, err := r.dev.Dial(within(t), netip.AddrPortFrom(r.Guests[0].Addr(v.v6), portCmatose),
			second.qp, roce.DialOptions{})
		if !errors.Is(err, roce.ErrRefused) {
			t.Errorf("the second connection: %v, want a refusal", err)
		}
		if out, err := k.wait(patience); err != nil {
			t.Errorf("the kernel's side: %v\n%s", err, out)
		}
		return
	}
	l := r.listen(t, v, portCmatose)
	k := r.guestProgram(t, fmt.Sprintf("ucmatose -s %s", r.HostAddr(v.v6)))
	req, err := l.Accept(within(t))
	check(t, err)
	check(t, req.Reject([]byte("not today")))
	if out, err := k.wait(patience); err == nil ||
		!strings.Contains(out, "RDMA_CM_EVENT_REJECTED, error: 28") {
		t.Errorf("ucmatose: %v\n%s", err, out)
	}
}

// nvmeInitiator: the kernel's own consumer of rdma_cm asks for an NVMe target, which gorxe is not.
func nvmeInitiator(t *testing.T, r *rig, v variant) {
	r.guest(t, "modprobe nvme_rdma && dmesg -c > /dev/null")
	start := time.Now()
	res, err := r.Guests[0].Exec(fmt.Sprintf("echo nqn=nqn.gorxe:none,transport=rdma,traddr=%v,trsvcid=%d > /dev/nvme-fabrics", r.HostAddr(v.v6), portNVMe), patience)
	check(t, err)
	if res.OK() {
		t.Error("the initiator thinks that it is connected")
	}
	said := r.guest(t, "dmesg")
	if !strings.Contains(said, "Connect rejected: status 8") {
		t.Errorf("the initiator does not say that it was refused with reason 8:\n%s", said)
	}
	if d := time.Since(start); d > promptly<<slow {
		t.Errorf("the refusal took %v", d)
	}
}

package roce_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// host is one side of the examples: a device and one object of each kind. A program on a network
// interface calls roce.Open("eth0") instead of roce.New.
type host struct {
	dev *roce.Device
	pd  *roce.PD
	cq  *roce.CQ
	mr  *roce.MR
	qp  *roce.QP
}

func newHost(port roce.Port, typ roce.QPType, opts ...roce.Option) (h host) {
	var err error
	if h.dev, err = roce.New(port, opts...); err != nil {
		log.Fatal(err)
	}
	if h.pd, err = h.dev.AllocPD(); err != nil {
		log.Fatal(err)
	}
	if h.cq, err = h.dev.CreateCQ(64); err != nil {
		log.Fatal(err)
	}
	if h.mr, err = h.pd.AllocMR(4096,
		roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic); err != nil {
		log.Fatal(err)
	}
	if h.qp, err = h.dev.CreateQP(h.pd, roce.QPConfig{Type: typ, SendCQ: h.cq}); err != nil {
		log.Fatal(err)
	}
	return h
}

// newHosts returns two hosts on an in-memory link.
func newHosts(typ roce.QPType, opts ...roce.Option) (a, b host, done func()) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	a, b = newHost(link.Port(0), typ, opts...), newHost(link.Port(1), typ, opts...)
	return a, b, func() { _, _ = a.dev.Close(), b.dev.Close() }
}

// twoHosts returns two hosts whose queue pairs are connected.
func twoHosts(typ roce.QPType, opts ...roce.Option) (a, b host, done func()) {
	a, b, done = newHosts(typ, opts...)
	if typ != roce.UD {
		connectHosts(a, b)
	}
	return a, b, done
}

// connectHosts connects two queue pairs. Hosts on a network send their Endpoint (and RemoteBuffer)
// to each other, for example as JSON over TCP.
func connectHosts(a, b host) {
	ctx := context.Background()
	if err := a.qp.Connect(ctx, b.qp.Local(), roce.ConnectOptions{}); err != nil {
		log.Fatal(err)
	}
	if err := b.qp.Connect(ctx, a.qp.Local(), roce.ConnectOptions{}); err != nil {
		log.Fatal(err)
	}
}

// listen listens for connections.
func (h host) listen() *roce.Listener {
	l, err := h.dev.Listen(netip.MustParseAddrPort("0.0.0.0:7471"), roce.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	return l
}

// accept accepts one connection.
func (h host) accept(ctx context.Context, l *roce.Listener) {
	r, err := l.Accept(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := r.Accept(ctx, h.qp, roce.AcceptOptions{}); err != nil {
		log.Fatal(err)
	}
}

// wait returns the next completion.
func (h host) wait() roce.WC {
	var wcs [1]roce.WC
	if _, err := h.cq.Wait(context.Background(), wcs[:]); err != nil {
		log.Fatal(err)
	}
	return wcs[0]
}

// RDMA WRITE: a writes into b's memory, without a call on b's side.
func ExampleQP_write() {
	a, b, done := twoHosts(roce.RC)
	defer done()
	remote := b.mr.Remote() // b tells a

	copy(a.mr.Bytes(), "hello, memory")
	if err := a.qp.PostSend(roce.SendWR{
		Op: roce.OpWrite, Flags: roce.Signaled,
		SGEs:       []roce.SGE{a.mr.SGE(0, 13)},
		RemoteAddr: remote.Addr, RKey: remote.RKey,
	}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.wait().Status)

	for b.mr.Load8(12) == 0 { // b may poll the last byte: the others become visible before it
		b.dev.Progress() // yields the processor to the device
	}
	fmt.Printf("%s\n", b.mr.Bytes()[:13])
	// Output:
	// success
	// hello, memory
}

// SEND and receive: b posts a buffer for the next message, and gets a completion when it has
// arrived.
func ExampleQP_sendRecv() {
	a, b, done := twoHosts(roce.RC)
	defer done()

	if err := b.qp.PostRecv(roce.RecvWR{ID: 7, SGEs: []roce.SGE{b.mr.SGE(0, 4096)}}); err != nil {
		log.Fatal(err)
	}
	if err := a.qp.PostSend(roce.SendWR{Op: roce.OpSendImm, Imm: 42,
		Inline: []byte("hello, peer")}); err != nil {
		log.Fatal(err)
	}
	wc := b.wait()
	fmt.Println(wc.ID, wc.Status, wc.Imm)
	fmt.Printf("%s\n", b.mr.Bytes()[:wc.ByteLen])
	// Output:
	// 7 success 42
	// hello, peer
}

// RDMA READ: a reads b's memory, without a call on b's side.
func ExampleQP_read() {
	a, b, done := twoHosts(roce.RC)
	defer done()
	copy(b.mr.Bytes()[100:], "data of b")
	remote := b.mr.Remote()

	if err := a.qp.PostSend(roce.SendWR{
		Op: roce.OpRead, Flags: roce.Signaled,
		SGEs:       []roce.SGE{a.mr.SGE(0, 9)},
		RemoteAddr: remote.Addr + 100, RKey: remote.RKey,
	}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.wait().Status)
	fmt.Printf("%s\n", a.mr.Bytes()[:9])
	// Output:
	// success
	// data of b
}

// Atomics: a changes 8 bytes of b's memory atomically and gets the old value.
func ExampleQP_atomics() {
	a, b, done := twoHosts(roce.RC)
	defer done()
	b.mr.Store64(0, 40)
	remote := b.mr.Remote()

	add := roce.SendWR{
		Op: roce.OpFetchAdd, SwapAdd: 2, Flags: roce.Signaled,
		SGEs:       []roce.SGE{a.mr.SGE(0, 8)},
		RemoteAddr: remote.Addr, RKey: remote.RKey,
	}
	swap := add
	swap.Op, swap.Compare, swap.SwapAdd = roce.OpCmpSwap, 42, 1000
	swap.SGEs = []roce.SGE{a.mr.SGE(8, 8)}
	if err := a.qp.PostSend(add, swap); err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.wait().Opcode, a.wait().Opcode)
	fmt.Println(a.mr.Load64(0), a.mr.Load64(8), b.mr.Load64(0))
	// Output:
	// FETCH_ADD COMP_SWAP
	// 40 42 1000
}

// UD: datagrams to any peer, by address handle. The first 40 bytes of the receive buffer hold the
// sender's network header.
func ExampleQP_datagram() {
	a, b, done := twoHosts(roce.UD)
	defer done()
	const qkey = 0x11111111
	for _, h := range []host{a, b} {
		if err := h.qp.Activate(qkey); err != nil {
			log.Fatal(err)
		}
	}
	if err := b.qp.PostRecv(roce.RecvWR{SGEs: []roce.SGE{b.mr.SGE(0, 4096)}}); err != nil {
		log.Fatal(err)
	}

	peer := b.qp.Local()
	ah, err := a.dev.CreateAH(context.Background(), roce.AHAttr{Remote: peer.GID})
	if err != nil {
		log.Fatal(err)
	}
	if err := a.qp.PostSend(roce.SendWR{
		Op: roce.OpSend, Inline: []byte("hello, datagram"),
		AH: ah, RemoteQPN: peer.QPN, RemoteQKey: peer.QKey,
	}); err != nil {
		log.Fatal(err)
	}
	wc := b.wait()
	fmt.Println(wc.SrcQP == a.qp.QPN())
	fmt.Printf("%s\n", b.mr.Bytes()[roce.GRHLen:wc.ByteLen])
	// Output:
	// true
	// hello, datagram
}

// Manual progress: CQ.Poll and Progress run the protocol in the caller's thread, for the lowest
// latency. Here one thread runs two devices.
func ExampleWithProgress() {
	a, b, done := twoHosts(roce.RC, roce.WithProgress(roce.Manual))
	defer done()
	remote := b.mr.Remote()
	if err := a.qp.PostSend(roce.SendWR{
		Op: roce.OpWrite, Flags: roce.Signaled, Inline: []byte("hello"),
		RemoteAddr: remote.Addr, RKey: remote.RKey,
	}); err != nil {
		log.Fatal(err)
	}
	wcs := make([]roce.WC, 1)
	for a.cq.Poll(wcs) == 0 { // runs a step of a
		b.dev.Progress() // runs a step of b, which receives the WRITE and sends the ACK
	}
	fmt.Printf("%v %s\n", wcs[0].Status, b.mr.Bytes()[:5])
	// Output: success hello
}

// writeOver runs a WRITE over a bad link in virtual time and returns all packets as a pcap file.
func writeOver(seed uint64) []byte {
	link, err := loopback.NewLink(loopback.Config{
		Virtual: true, Seed: seed,
		Plan: loopback.Plan{Loss: 0.2, Delay: 10 * time.Microsecond},
	})
	if err != nil {
		log.Fatal(err)
	}
	var file bytes.Buffer
	capture := loopback.NewCapture(&file, link.Now)
	var hosts [2]host
	for i := range hosts {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		hosts[i] = newHost(capture.Tee(link.Port(i)), roce.RC,
			roce.WithExpert(roce.Expert{Clock: link.Now, Rand: random.Uint64}))
		defer hosts[i].dev.Close()
	}
	a, b := hosts[0], hosts[1]
	connectHosts(a, b)
	if err := a.qp.PostSend(roce.SendWR{
		Op: roce.OpWrite, Flags: roce.Signaled, SGEs: []roce.SGE{a.mr.SGE(0, 4096)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}); err != nil {
		log.Fatal(err)
	}
	if err := loopback.Drive(link, time.Second, func() bool { return a.cq.Len() > 0 },
		a.dev, b.dev); err != nil {
		log.Fatal(err)
	}
	if err := capture.Flush(); err != nil {
		log.Fatal(err)
	}
	return file.Bytes()
}

// Virtual time: the program moves the clock. With a random source of its own, too, a run replays
// from its seeds, byte for byte.
func ExampleExpert() {
	fmt.Println(bytes.Equal(writeOver(1), writeOver(1)), bytes.Equal(writeOver(1), writeOver(2)))
	// Output: true false
}

// Memory windows: b allows a to write 64 bytes of a region that has no remote rights itself, and
// then invalidates the key.
func ExampleMW() {
	a, b, done := twoHosts(roce.RC)
	defer done()
	private, err := b.pd.AllocMR(4096, roce.LocalWrite|roce.MWBind)
	if err != nil {
		log.Fatal(err)
	}
	mw, err := b.pd.AllocMW(roce.MWType2)
	if err != nil {
		log.Fatal(err)
	}
	key, err := b.qp.BindMW(mw, roce.MWBindAttr{
		Flags: roce.Signaled, SGE: private.SGE(128, 64), Access: roce.RemoteWrite,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(b.wait().Opcode) // now b can tell a the key

	write := roce.SendWR{
		Op: roce.OpWrite, Flags: roce.Signaled, Inline: []byte("through the window"),
		RemoteAddr: private.Addr() + 128, RKey: key,
	}
	if err := a.qp.PostSend(write); err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.wait().Status)
	fmt.Printf("%s\n", private.Bytes()[128:146])

	if err := b.qp.PostSend(roce.SendWR{Op: roce.OpLocalInv, InvKey: key,
		Flags: roce.Signaled}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(b.wait().Opcode)
	if err := a.qp.PostSend(write); err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.wait().Status)
	// Output:
	// BIND_MW
	// success
	// through the window
	// LOCAL_INV
	// remote access error
}

// FLUSH and ATOMIC WRITE: a writes a record, makes it visible, and only then updates the 8 bytes
// that hold the end of the log.
func ExampleQP_commit() {
	a, b, done := twoHosts(roce.RC)
	defer done()
	buf, err := b.pd.AllocMR(4096, roce.LocalWrite|roce.RemoteWrite|roce.FlushGlobal)
	if err != nil {
		log.Fatal(err)
	}
	remote := buf.Remote()
	record := []byte("a record")
	end := binary.NativeEndian.AppendUint64(nil, 8+uint64(len(record)))
	if err := a.qp.PostSend(
		roce.SendWR{
			Op: roce.OpWrite, Inline: record, RemoteAddr: remote.Addr + 8, RKey: remote.RKey,
		},
		roce.SendWR{
			Op: roce.OpFlush, Placement: roce.PlaceGlobal,
			RemoteAddr: remote.Addr + 8, Length: uint32(len(record)), RKey: remote.RKey,
		},
		roce.SendWR{
			Op: roce.OpAtomicWrite, Inline: end, Flags: roce.Signaled,
			RemoteAddr: remote.Addr, RKey: remote.RKey,
		},
	); err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.wait().Opcode)
	fmt.Printf("%s\n", buf.Bytes()[8:buf.Load64(0)])
	// Output:
	// ATOMIC_WRITE
	// a record
}

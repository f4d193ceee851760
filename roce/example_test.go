package roce_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// host is one end of the examples: a device, and one object of each kind on it. On a real interface it begins with
// roce.Open("eth0") instead of roce.New.
type host struct {
	dev *roce.Device
	pd  *roce.PD
	cq  *roce.CQ
	mr  *roce.MR
	qp  *roce.QP
}

func newHost(link *loopback.Link, i int, typ roce.QPType) (h host) {
	var err error
	if h.dev, err = roce.New(link.Port(i)); err != nil {
		log.Fatal(err)
	}
	if h.pd, err = h.dev.AllocPD(); err != nil {
		log.Fatal(err)
	}
	if h.cq, err = h.dev.CreateCQ(64); err != nil {
		log.Fatal(err)
	}
	if h.mr, err = h.pd.AllocMR(4096, roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic); err != nil {
		log.Fatal(err)
	}
	if h.qp, err = h.dev.CreateQP(h.pd, roce.QPConfig{Type: typ, SendCQ: h.cq}); err != nil {
		log.Fatal(err)
	}
	return h
}

// twoHosts makes two hosts on an in-memory link. Between machines, each end sends its Endpoint (and RemoteBuffer) to the
// other over TCP, as JSON for example.
func twoHosts(typ roce.QPType) (a, b host, done func()) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	a, b = newHost(link, 0, typ), newHost(link, 1, typ)
	if typ != roce.UD {
		ctx := context.Background()
		if err := a.qp.Connect(ctx, b.qp.Local(), roce.ConnectOptions{}); err != nil {
			log.Fatal(err)
		}
		if err := b.qp.Connect(ctx, a.qp.Local(), roce.ConnectOptions{}); err != nil {
			log.Fatal(err)
		}
	}
	return a, b, func() { _, _ = a.dev.Close(), b.dev.Close() }
}

// wait returns the next completion.
func (h host) wait() roce.WC {
	var wcs [1]roce.WC
	if _, err := h.cq.Wait(context.Background(), wcs[:]); err != nil {
		log.Fatal(err)
	}
	return wcs[0]
}

// RDMA WRITE: a puts bytes into b's memory, and b does nothing for it.
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

	for b.mr.Load8(12) == 0 { // b may poll the last byte: the others are there before it
	}
	fmt.Printf("%s\n", b.mr.Bytes()[:13])
	// Output:
	// success
	// hello, memory
}

// SEND and receive: b says where the next message shall go, and gets a completion when it has come.
func ExampleQP_sendRecv() {
	a, b, done := twoHosts(roce.RC)
	defer done()

	if err := b.qp.PostRecv(roce.RecvWR{ID: 7, SGEs: []roce.SGE{b.mr.SGE(0, 4096)}}); err != nil {
		log.Fatal(err)
	}
	if err := a.qp.PostSend(roce.SendWR{Op: roce.OpSendImm, Imm: 42, Inline: []byte("hello, peer")}); err != nil {
		log.Fatal(err)
	}
	wc := b.wait()
	fmt.Println(wc.ID, wc.Status, wc.Imm)
	fmt.Printf("%s\n", b.mr.Bytes()[:wc.ByteLen])
	// Output:
	// 7 success 42
	// hello, peer
}

// RDMA READ: a fetches bytes from b's memory, and b does nothing for it.
func ExampleQP_read() {
	a, b, done := twoHosts(roce.RC)
	defer done()
	copy(b.mr.Bytes()[100:], "b's own words")
	remote := b.mr.Remote()

	if err := a.qp.PostSend(roce.SendWR{
		Op: roce.OpRead, Flags: roce.Signaled,
		SGEs:       []roce.SGE{a.mr.SGE(0, 13)},
		RemoteAddr: remote.Addr + 100, RKey: remote.RKey,
	}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.wait().Status)
	fmt.Printf("%s\n", a.mr.Bytes()[:13])
	// Output:
	// success
	// b's own words
}

// Atomics: 8 bytes of b's memory, changed by a in one indivisible step, with the old value coming back.
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

// UD: datagrams to anybody, by address handle. The receiver finds the sender's network header in the first 40 bytes.
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
		Op: roce.OpSend, Inline: []byte("hello, anybody"),
		AH: ah, RemoteQPN: peer.QPN, RemoteQKey: peer.QKey,
	}); err != nil {
		log.Fatal(err)
	}
	wc := b.wait()
	fmt.Println(wc.SrcQP == a.qp.QPN())
	fmt.Printf("%s\n", b.mr.Bytes()[roce.GRHLen:wc.ByteLen])
	// Output:
	// true
	// hello, anybody
}

// Manual progress: CQ.Poll itself does the work, in the caller's thread. That is the way to the lowest latency; here one
// thread turns the cranks of both ends.
func ExampleWithProgress() {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	var ends [2]*roce.Device
	for i := range ends {
		if ends[i], err = roce.New(link.Port(i), roce.WithProgress(roce.Manual)); err != nil {
			log.Fatal(err)
		}
		defer ends[i].Close()
	}
	fmt.Println(ends[0].Progress() + ends[1].Progress()) // nothing to do yet
	// Output: 0
}

// Memory windows: b lets a write 64 bytes of a region that is otherwise closed to peers, and takes the key back.
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
	key, err := b.qp.BindMW(mw, roce.MWBindAttr{Flags: roce.Signaled, SGE: private.SGE(128, 64), Access: roce.RemoteWrite})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(b.wait().Opcode) // b may tell a the key

	write := roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled, Inline: []byte("through the window"), RemoteAddr: private.Addr() + 128, RKey: key}
	if err := a.qp.PostSend(write); err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.wait().Status)
	fmt.Printf("%s\n", private.Bytes()[128:146])

	if err := b.qp.PostSend(roce.SendWR{Op: roce.OpLocalInv, InvKey: key, Flags: roce.Signaled}); err != nil {
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

// FLUSH and ATOMIC WRITE: a writes a record, has it made visible, and only then moves the 8 bytes that point to it.
func ExampleQP_commit() {
	a, b, done := twoHosts(roce.RC)
	defer done()
	log1, err := b.pd.AllocMR(4096, roce.LocalWrite|roce.RemoteWrite|roce.FlushGlobal)
	if err != nil {
		log.Fatal(err)
	}
	remote := log1.Remote()
	record := []byte("a record")
	if err := a.qp.PostSend(
		roce.SendWR{Op: roce.OpWrite, Inline: record, RemoteAddr: remote.Addr + 8, RKey: remote.RKey},
		roce.SendWR{Op: roce.OpFlush, Placement: roce.PlaceGlobal, RemoteAddr: remote.Addr + 8, Length: uint32(len(record)), RKey: remote.RKey},
		roce.SendWR{Op: roce.OpAtomicWrite, Inline: binary.NativeEndian.AppendUint64(nil, 8+uint64(len(record))), RemoteAddr: remote.Addr, RKey: remote.RKey, Flags: roce.Signaled},
	); err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.wait().Opcode)
	fmt.Printf("%s\n", log1.Bytes()[8:log1.Load64(0)])
	// Output:
	// ATOMIC_WRITE
	// a record
}

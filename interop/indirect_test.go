//go:build interop

package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/lab"
	"github.com/gorxe/gorxe/interop/peer"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect"
)

// Parameters of the indirect transport's scenarios. A guest's round trip takes milliseconds.
const (
	indirectTimeout = 30 * time.Millisecond
	indirectMem     = 1 << 20
	indirectSlot    = 64 << 10
	indirectSlots   = 4
	indirectEntries = 16
	indirectSegment = 16 << 10
)

// indirectRig is gorxe's transport/indirect connected to its C peer on the kernel's rxe.
type indirectRig struct {
	t    *testing.T
	p    *peer.Peer
	ep   *indirect.Endpoint
	conn *indirect.Conn
	mr   *roce.MR
}

// talkIndirect connects both sides. frp and traditional are gorxe's.
func talkIndirect(t *testing.T, r *rig, v variant, frp float64, traditional bool) *indirectRig {
	t.Helper()
	p, err := peer.StartTransport(r.Guests[0].VM, peer.Indirect)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	pd, err := r.dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pd.Close() })
	i := &indirectRig{t: t, p: p}
	if i.mr, err = pd.AllocMR(indirectMem, roce.LocalWrite|roce.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.mr.Close() })
	i.ep, err = indirect.New(r.dev, pd, indirect.Config{
		Host: indirect.NewSpace(i.mr), Traditional: traditional, MaxTransfer: indirectSlot,
		Slots: indirectSlots, Entries: indirectEntries,
		Segment: indirectSegment, Timeout: indirectTimeout, Patience: patience,
		RC:     roce.ConnectOptions{MTU: v.mtu, Timeout: 16},
		Faults: indirect.Faults{Seed: 1, FailedRegistration: frp},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.ep.Close() })
	if i.conn, err = i.ep.Prepare(); err != nil {
		t.Fatal(err)
	}
	i.join(r, v)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- i.ep.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return i
}

func (i *indirectRig) do(wait time.Duration, format string, args ...any) peer.Fields {
	i.t.Helper()
	r, err := i.p.Do(wait, format, args...)
	if err != nil {
		i.t.Fatal(err)
	}
	return r.Fields
}

// join exchanges both sides' parameters.
func (i *indirectRig) join(r *rig, v variant) {
	i.t.Helper()
	addr := r.Guests[0].Addr(v.v6)
	sgid := 1 // rxe's table: 0 is link-local, 1 IPv4, 2 the global IPv6 address
	if v.v6 {
		sgid = 2
	}
	f := i.do(0, "open sgid=%d mtu=%d mem=%d slots=%d slot=%d entries=%d segment=%d t=%d", sgid,
		int(v.mtu), indirectMem, indirectSlots, indirectSlot,
		indirectEntries, indirectSegment, indirectTimeout.Microseconds())
	own, params := i.conn.Local()
	gid := roce.GID(r.HostAddr(v.v6).As16())
	i.do(0, "join qpn=%d psn=%d gid=%v udqpn=%d qkey=%d token=%d base=%d rkey=%d slots=%d slot=%d",
		own.QPN, own.PSN, gid, params.QPN, params.QKey,
		params.Token, params.Base, params.RKey, params.Slots, params.Slot)
	err := i.conn.Join(context.Background(), roce.Endpoint{
		QPN: roce.QPN(f.Num("qpn")), PSN: roce.PSN(f.Num("psn")), GID: roce.GID(addr.As16()),
		MTU: v.mtu, PKey: roce.DefaultPKey,
	}, indirect.Params{
		QPN: roce.QPN(f.Num("udqpn")), QKey: roce.QKey(f.Num("qkey")),
		Token: uint32(f.Num("token")), Base: f.Num("base"), RKey: roce.RKey(f.Num("rkey")),
		Slots: indirectSlots, Slot: indirectSlot, Entries: indirectEntries,
		Segment: indirectSegment,
	})
	if err != nil {
		i.t.Fatal(err)
	}
}

// reply is the result of a peer's command.
type reply struct {
	peer.Fields
	err error
}

// begin runs a peer's command concurrently.
func (i *indirectRig) begin(format string, args ...any) <-chan reply {
	ch := make(chan reply, 1)
	go func() {
		r, err := i.p.Do(time.Minute, format, args...)
		ch <- reply{r.Fields, err}
	}()
	return ch
}

func (i *indirectRig) await(ch <-chan reply) peer.Fields {
	i.t.Helper()
	r := <-ch
	if r.err != nil {
		i.t.Fatal(r.err)
	}
	return r.Fields
}

// indirectAt returns the offset of transfer k in both memories, not aligned to pages.
func indirectAt(k int) int { return k*(indirectSlot+96) + 32 }

// TestIndirect tests the indirect transport against a program with only libibverbs on the kernel's
// rxe, each side in each role.
func TestIndirect(t *testing.T) {
	const n = 8
	for _, s := range []struct {
		name string
		frp  int    // percent, at the responder
		loss string // percent, both directions
	}{
		{name: "direct"}, {name: "refused", frp: 60}, {name: "lossy", loss: "10%"},
		{name: "refused, lossy", frp: 50, loss: "20%"},
	} {
		play(t, "indirect WRITE, "+s.name, few(), func(t *testing.T, r *rig, v variant) {
			i := talkIndirect(t, r, v, float64(s.frp)/100, false)
			if s.loss != "" {
				r.fault(t, true, "loss "+s.loss)
				r.fault(t, false, "loss "+s.loss)
			}
			if v.gorxePassive {
				i.guestWrites(n, s.frp)
			} else {
				i.gorxeWrites(n, s.frp)
			}
		})
		play(t, "indirect READ, "+s.name, few(), func(t *testing.T, r *rig, v variant) {
			i := talkIndirect(t, r, v, float64(s.frp)/100, false)
			if s.loss != "" {
				r.fault(t, true, "loss "+s.loss)
				r.fault(t, false, "loss "+s.loss)
			}
			if v.gorxePassive {
				i.guestReads(n)
			} else {
				i.gorxeReads(n, s.frp)
			}
		})
	}
}

func (i *indirectRig) gorxeWrites(n, frp int) {
	served := i.begin("serve n=%d ms=60000 frp=%d seed=7", n, frp)
	for k := range n {
		peer.Fill(i.mr.Bytes()[indirectAt(k):][:indirectSlot-k], uint32(k))
		if err := i.conn.Write(i.t.Context(), i.mr, indirectAt(k), indirectSlot-k,
			uint64(indirectAt(k))); err != nil {
			i.t.Fatalf("transfer %d: %v", k, err)
		}
	}
	f, c := i.await(served), i.conn.Counters()
	i.t.Logf("guest: %v; gorxe: %+v", f, c)
	for k := range n {
		i.do(0, "check off=%d len=%d seed=%d", indirectAt(k), indirectSlot-k, k)
	}
	if f.Num("delivered") != uint64(n) || c.Direct+c.Indirect != uint64(n) ||
		f.Num("parked")+f.Num("straight") != c.Indirect {
		i.t.Errorf("the two sides disagree: guest %v, gorxe %+v", f, c)
	}
	if frp > 0 && c.Indirect == 0 {
		i.t.Error("registrations failed, and nothing went indirectly")
	}
}

func (i *indirectRig) guestWrites(n, frp int) {
	for k := range n {
		i.do(0, "fill off=%d len=%d seed=%d", indirectAt(k), indirectSlot-32, k)
	}
	f := i.do(time.Minute, "put n=%d len=%d src=%d dba=%d step=%d ms=60000", n, indirectSlot-32,
		indirectAt(0), indirectAt(0), indirectAt(1)-indirectAt(0))
	c := i.conn.Counters()
	i.t.Logf("guest: %v; gorxe: %+v", f, c)
	for k := range n {
		if err := peer.Check(i.mr.Bytes()[indirectAt(k):][:indirectSlot-32],
			uint32(k)); err != nil {
			i.t.Errorf("transfer %d: %v", k, err)
		}
	}
	if c.Delivered != uint64(n) || f.Num("direct")+f.Num("indirect") != uint64(n) ||
		c.Parked+c.Straight != f.Num("indirect") {
		i.t.Errorf("the two sides disagree: guest %v, gorxe %+v", f, c)
	}
	// Memory that was registered when the data arrived takes it directly; the rest is parked.
	if frp > 0 && c.Refused > 0 && c.Parked+c.Straight == 0 {
		i.t.Error("registrations failed, and nothing came indirectly")
	}
}

func (i *indirectRig) gorxeReads(n, frp int) {
	for k := range n {
		i.do(0, "fill off=%d len=%d seed=%d", indirectAt(k), indirectSlot, 100+k)
	}
	served := i.begin("serve n=%d ms=60000 frp=%d seed=7", n, frp)
	for k := range n {
		if err := i.conn.Read(i.t.Context(), i.mr, indirectAt(k), indirectSlot,
			uint64(indirectAt(k))); err != nil {
			i.t.Fatalf("transfer %d: %v", k, err)
		}
		if err := peer.Check(i.mr.Bytes()[indirectAt(k):][:indirectSlot],
			uint32(100+k)); err != nil {
			i.t.Errorf("transfer %d: %v", k, err)
		}
	}
	f, c := i.await(served), i.conn.Counters()
	if f.Num("readdirect")+f.Num("readindirect") != uint64(n) || c.Reads != uint64(n) {
		i.t.Errorf("the two sides disagree: guest %v, gorxe %+v", f, c)
	}
}

func (i *indirectRig) guestReads(n int) {
	for k := range n {
		peer.Fill(i.mr.Bytes()[indirectAt(k):][:indirectSlot], uint32(k))
	}
	i.do(time.Minute, "get n=%d len=%d dst=%d src=%d dba=%d step=%d ms=60000", n, indirectSlot,
		indirectAt(0), indirectAt(0), indirectAt(0), indirectAt(1)-indirectAt(0))
	for k := range n {
		i.do(0, "check off=%d len=%d seed=%d", indirectAt(k), indirectSlot, k)
	}
	if c := i.conn.Counters(); c.ReadDirect+c.ReadIndirect != uint64(n) {
		i.t.Errorf("%+v", c)
	}
}

// TestIndirectPeerDies: parked data is dropped when its guest is gone, and the buffer is complete
// again.
func TestIndirectPeerDies(t *testing.T) {
	play(t, "indirect WRITE, initiator dies", []variant{{lab.MaxMTU, 1024, false, true}},
		func(t *testing.T, r *rig, v variant) {
			i := talkIndirect(t, r, v, 1, false) // nothing is ever registered
			i.do(0, "fill off=0 len=%d seed=1", indirectSlot)
			put := i.begin("put n=1 len=%d src=0 dba=0 ms=1000", indirectSlot)
			end := time.Now().Add(patience)
			for i.conn.Counters().ParkedBytes != indirectSlot && time.Now().Before(end) {
				time.Sleep(10 * time.Millisecond)
			}
			if c := i.conn.Counters(); c.ParkedBytes != indirectSlot {
				t.Fatalf("not parked: %+v", c)
			}
			if got := <-put; got.err == nil {
				t.Error("the guest believes that its transfer is done")
			}
			_ = i.p.Kill()
			// a dead peer sends nothing; Silence would do the same later
			if err := i.conn.Close(); err != nil {
				t.Error(err)
			}
			if c, _ := i.ep.Counters(); c.Orphaned != 1 || c.ParkedBytes != 0 || c.Delivered != 0 {
				t.Errorf("%+v", c)
			}
			if _, err := i.ep.Prepare(); err != nil {
				t.Errorf("a new connection: %v", err)
			}
		})
}

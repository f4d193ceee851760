package roce

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// pkeyPair returns two endpoints, each with its own P_Keys.
func pkeyPair(t *testing.T, c rigConfig, a, b []PKey) connPair {
	t.Helper()
	link := newLink(t, c.link)
	return connPair{
		link: link, addr: netip.AddrPortFrom(netip.MustParseAddr("10.77.0.2"), testPort),
		a: newEnd(t, newDevice(t, link, 0, append(c.opts, WithPKeys(a...))...), c),
		b: newEnd(t, newDevice(t, link, 1, append(c.opts, WithPKeys(b...))...), c),
	}
}

// Datagrams reach a QP only if their P_Key names its partition and one side is a full member.
func TestPartitionsOfDatagrams(t *testing.T) {
	for _, c := range []struct {
		a, b PKey
		want bool
	}{
		{0xffff, 0xffff, true},
		{0x8001, 0x8001, true},
		{0x0001, 0x8001, true},
		{0x8001, 0x0001, true},
		{0x0001, 0x0001, false},
		{0x8001, 0x8002, false},
		{0x8001, 0xffff, false},
	} {
		k := pkeyPair(t, rigConfig{typ: UD}, []PKey{c.a}, []PKey{c.b})
		connect(t, k.a.qp, k.b.qp)
		must(t, k.b.qp.PostRecv(RecvWR{SGEs: []SGE{k.b.mr.SGE(0, 1024)}}))
		ah, err := k.a.CreateAH(within(t), AHAttr{Remote: k.b.qp.Local().GID})
		must(t, err)
		must(t, k.a.qp.PostSend(SendWR{Op: OpSend, Inline: []byte("x"), AH: ah,
			RemoteQPN: k.b.qp.QPN(), RemoteQKey: 0x1234}))
		eventually(t, "a datagram arrives", func() bool { return k.b.Counters().RxFrames > 0 })
		n := k.b.Counters()
		if got := k.b.cq.Len() == 1; got != c.want {
			t.Errorf("P_Key %#04x to %#04x: received = %v, want %v", c.a, c.b, got, c.want)
		}
		if got := n.Get("drop_pkey") == 0; got != c.want {
			t.Errorf("P_Key %#04x to %#04x: drop_pkey = %d", c.a, c.b, n.Get("drop_pkey"))
		}
	}
}

// Connect compares the P_Keys of both endpoints. If the peer's is not known, packets of another
// partition are ignored.
func TestPartitionsOfConnect(t *testing.T) {
	k := pkeyPair(t, rigConfig{}, []PKey{0x8001}, []PKey{0x8002, 0x0001})
	if p := k.b.qp.Local().PKey; p != 0x8002 {
		t.Errorf("Local().PKey = %#04x, want the first, 0x8002", p)
	}
	err := k.a.qp.Connect(within(t), k.b.qp.Local(), ConnectOptions{})
	if !errors.Is(err, ErrPKey) || k.a.qp.State() != StateInit {
		t.Errorf("Connect() = %v and state %v, want ErrPKey and INIT", err, k.a.qp.State())
	}
	q, err := k.b.CreateQP(k.b.pd, QPConfig{SendCQ: k.b.cq, PKey: 0x8001})
	must(t, err)
	if p := q.Local().PKey; p != 0x0001 {
		t.Errorf("Local().PKey = %#04x, want the device's key of the partition, 0x0001", p)
	}
	connect(t, k.a.qp, q)
	must(t, k.a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, Inline: []byte("x"),
		RemoteAddr: k.b.mr.Addr(), RKey: k.b.mr.RKey()}))
	pollOK(t, 0, WCWrite, k.a.cq)

	unknown := k.b.qp.Local()
	unknown.PKey = 0
	a, err := k.a.CreateQP(k.a.pd, QPConfig{SendCQ: k.a.cq})
	must(t, err)
	must(t, a.Connect(within(t), unknown, ConnectOptions{Timeout: 10, Retries: 1}))
	remote := a.Local()
	remote.PKey = 0
	must(t, k.b.qp.Connect(within(t), remote, ConnectOptions{}))
	must(t, a.PostSend(SendWR{Op: OpWrite, Flags: Signaled, Inline: []byte("y"),
		RemoteAddr: k.b.mr.Addr(), RKey: k.b.mr.RKey()}))
	if wc := poll(t, 1, k.a.cq)[0]; wc.Status != RetryExcErr {
		t.Errorf("a WRITE to another partition: %v, want %v", wc.Status, RetryExcErr)
	}
	if n := k.b.Counters(); n.DropPKey == 0 || k.b.mr.Load8(0) != 'x' {
		t.Errorf("DropPKey = %d, memory %q", n.DropPKey, k.b.mr.Load8(0))
	}
}

// Connection requests reach listeners of the same partition only. The accepted QP must be in it.
func TestPartitionsOfDial(t *testing.T) {
	k := pkeyPair(t, rigConfig{}, []PKey{0x0001}, []PKey{0x8002, 0x8001})
	l := k.listen(t)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		accepted <- func() error {
			r, err := l.Accept(within(t))
			if err != nil {
				return err
			}
			if p := r.Params().PKey; p != 0x0001 {
				t.Errorf("Params().PKey = %#04x, want 0x0001", p)
			}
			if err := r.check(k.b.qp, &AcceptOptions{}); !errors.Is(err, ErrPKey) {
				t.Errorf("Accept with a QP of another partition: %v, want ErrPKey", err)
			}
			q, err := k.b.CreateQP(k.b.pd, QPConfig{SendCQ: k.b.cq, PKey: r.Params().PKey})
			if err != nil {
				return err
			}
			_, err = r.Accept(within(t), q, AcceptOptions{})
			return err
		}()
	}()
	_, err := k.a.Dial(within(t), k.addr, k.a.qp, DialOptions{})
	must(t, errors.Join(err, <-accepted))
	must(t, k.a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, Inline: []byte("x"),
		RemoteAddr: k.b.mr.Addr(), RKey: k.b.mr.RKey()}))
	pollOK(t, 0, WCWrite, k.a.cq)
}

// A connection request of another partition is ignored and counted.
func TestForeignPartitionIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := pkeyPair(t, rigConfig{}, []PKey{DefaultPKey}, []PKey{0x8001})
		k.listen(t)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
		if !errors.Is(err, ErrNoAnswer) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Dial() = %v, want no answer", err)
		}
		_, err = k.a.ResolveUD(ctx, k.addr, nil)
		if !errors.Is(err, ErrNoAnswer) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ResolveUD() = %v, want no answer", err)
		}
		if n := k.b.Counters(); n.DropPKey == 0 || n.GSISent != 0 {
			t.Errorf("DropPKey = %d, GSISent = %d", n.DropPKey, n.GSISent)
		}
	})
}

func TestPKeyTable(t *testing.T) {
	link := newLink(t, loopback.Config{})
	for _, keys := range [][]PKey{
		{0}, {0x8000}, {0x8001, 0}, {0x8001, 0x8001}, {0x8001, 0x0001},
		slices.Repeat([]PKey{0x8001}, maxPKeys+1),
	} {
		if _, err := newPKeyTable(keys); !errors.Is(err, ErrPKey) {
			t.Errorf("P_Keys %#04x: %v, want ErrPKey", keys, err)
		}
	}
	if d := newDevice(t, link, 0); !slices.Equal(d.PKeys(), []PKey{DefaultPKey}) {
		t.Errorf("PKeys() = %#04x by default", d.PKeys())
	}
	e := newEnd(t, newDevice(t, link, 1, WithPKeys(0x8001, 0x8002)), rigConfig{})
	for _, key := range []PKey{0x8003, 0x8000, DefaultPKey} {
		if _, err := e.CreateQP(e.pd, QPConfig{SendCQ: e.cq, PKey: key}); !errors.Is(err, ErrPKey) {
			t.Errorf("CreateQP with P_Key %#04x: %v, want ErrPKey", key, err)
		}
		err := e.qp.Modify(&Attr{State: StateInit, PKey: key}, AttrState|AttrPKey)
		if !errors.Is(err, ErrPKey) {
			t.Errorf("Modify to P_Key %#04x: %v, want ErrPKey", key, err)
		}
	}
	must(t, e.qp.Modify(&Attr{State: StateInit, PKey: 2}, AttrState|AttrPKey))
	if a, err := e.qp.Query(); err != nil || a.PKey != 0x8002 || e.qp.Local().PKey != 0x8002 {
		t.Errorf("after Modify: P_Key %#04x and %#04x, %v; want 0x8002", a.PKey,
			e.qp.Local().PKey, err)
	}
	if err := e.qp.Modify(&Attr{State: StateInit}, AttrState|AttrPKey); !errors.Is(err,
		ErrInvalidAttr) {
		t.Errorf("Modify to P_Key 0: %v, want ErrInvalidAttr", err)
	}
}

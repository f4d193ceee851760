package rftp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp/core"
)

// forge posts a work request with n bytes of memory, which fill writes, on a QP of the dialer.
func (g *rig) forge(q *roce.QP, n int, wr roce.SendWR, fill func(b []byte)) {
	g.Helper()
	if n > 0 {
		mr, err := g.conn[0].pd.AllocMR(n, roce.LocalWrite)
		if err != nil {
			g.Fatal(err)
		}
		g.mrs = append(g.mrs, mr)
		if fill != nil {
			fill(mr.Bytes())
		}
		wr.SGEs = []roce.SGE{mr.SGE(0, n)}
	}
	if err := q.PostSend(wr); err != nil {
		g.Fatal(err)
	}
}

// target returns the address and key of block i of the listener's pool.
func (g *rig) target(i int) (uint64, roce.RKey) {
	c := g.conn[1]
	return c.in.mr.Addr() + uint64(i*stride(c.agreed.size)+headerAt), c.in.mr.RKey()
}

// A peer that violates the protocol on the wire loses the connection, with a reason on both sides.
func TestForged(t *testing.T) {
	write := func(g *rig, i, n int, imm uint32, h core.Header) {
		addr, key := g.target(i)
		g.forge(g.conn[0].data[0], n, roce.SendWR{Op: roce.OpWriteImm, Imm: imm, RemoteAddr: addr,
			RKey: key}, h.Put)
	}
	for name, c := range map[string]struct {
		do   func(g *rig)
		want string
	}{
		"block that does not exist": {func(g *rig) {
			write(g, 0, 64, 1<<16|99,
				core.Header{Session: 1})
		},
			"block 99"},
		"grant that does not exist": {func(g *rig) {
			write(g, 0, 64, 7<<16,
				core.Header{Session: 1})
		},
			"not granted"},
		"repeated FIN": {func(g *rig) {
			write(g, 0, 64, 1<<16, core.Header{Session: 1})
			write(g, 0, 64, 1<<16, core.Header{Session: 1, Seq: 1})
		}, "announced before"},
		"length": {func(g *rig) { write(g, 0, 74, 1<<16, core.Header{Session: 1, Len: 11}) },
			"10 bytes has the length 11"},
		"huge length": {func(g *rig) {
			write(g, 0, 64, 1<<16,
				core.Header{Session: 1, Len: 1<<32 - 1})
		},
			"length 4294967295"},
		"session": {func(g *rig) { write(g, 0, 64, 1<<16, core.Header{Session: 9999}) },
			"session 9999"},
		"message on a data QP": {func(g *rig) {
			g.forge(g.conn[0].data[0], 0, roce.SendWR{Op: roce.OpSend}, nil)
		}, "on a data QP"},
		"garbage": {func(g *rig) { g.forge(g.conn[0].ctl, 100, roce.SendWR{Op: roce.OpSend}, nil) },
			"version 0"},
		"empty message": {func(g *rig) {
			g.forge(g.conn[0].ctl, 0, roce.SendWR{Op: roce.OpSend},
				nil)
		},
			"0 bytes"},
		"flood of requests": {func(g *rig) {
			for i := range uint32(20) {
				g.forge(g.conn[0].ctl, 20, roce.SendWR{Op: roce.OpSend}, func(b []byte) {
					b[1], b[2], b[7] = byte(core.TypeRequest), core.Version, 4
					binary.BigEndian.PutUint32(b[16:], i+1)
				})
			}
		}, "Request in proactive mode"},
	} {
		t.Run(name, func(t *testing.T) {
			if raceEnabled && name == "repeated FIN" {
				t.Skip("the peer writes to memory that is being read")
			}
			g := newRig(t, testbed.Config{})
			cfg := Config{BlockSize: 8192, Pool: 4 * 8192, SourcePool: 4 * 8192}
			g.connect(cfg, cfg)
			c.do(g)
			<-g.conn[1].Done()
			if err := g.conn[1].Err(); !errors.Is(err, ErrPeer) ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("Err() = %v, want ErrPeer with %q", err, c.want)
			}
			<-g.conn[0].Done()
			var abort *AbortError
			err := g.conn[0].Err()
			if name != "flood of requests" && // the dialer may notice messages that it did not send
				(!errors.As(err, &abort) || !strings.Contains(abort.Text, c.want)) {
				t.Errorf("the peer's Err() = %v, want an *AbortError with %q", err, c.want)
			}
		})
	}
}

// A sink that grants addresses that it does not have ends the connection with a clear error.
func TestForgedGrant(t *testing.T) {
	g := newRig(t, testbed.Config{})
	cfg := Config{BlockSize: 8192, Pool: 4 * 8192, SourcePool: 4 * 8192}
	g.connect(cfg, cfg)
	if err := g.conn[1].in.mr.Close(); err != nil {
		t.Fatal(err)
	}
	err := send(g.ctx, g.conn[0], 10, 100)
	if !errors.Is(err, ErrPeer) || !strings.Contains(err.Error(), "refuses a WRITE") {
		t.Errorf("send() = %v, want ErrPeer with the reason", err)
	}
}

// Requests of other protocols, of unknown connections and with other limits are rejected, and do
// not disturb an honest peer.
func TestForgedRequests(t *testing.T) {
	g := newRig(t, testbed.Config{})
	var refusals atomic.Int32
	g.listen(ListenConfig{Refused: func(netip.AddrPort, error) { refusals.Add(1) }})
	accepted := make(chan *Conn, 1)
	go func() {
		c, err := g.l.Accept(g.ctx)
		if err != nil {
			t.Errorf("Accept() = %v", err)
		}
		accepted <- c
	}()
	pd, err := g.Dev[0].AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := g.Dev[0].CreateCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	own, bad := Limits{Proactive, 1, 1, 100, 100}, Limits{Proactive, 1, 1, 100, 200}
	for name, private := range map[string][]byte{
		"another protocol": []byte("GXSB\x01"),
		"version":          append([]byte("GXFT\x02\x00"), make([]byte, 18)...),
		"kind":             header(7),
		"limits":           bad.put(),
		"class":            own.putRequest(7),
		"data QP":          putData(12345, 0),
	} {
		q, err := g.Dev[0].CreateQP(pd, roce.QPConfig{SendCQ: cq})
		if err != nil {
			t.Fatal(err)
		}
		_, err = g.Dev[0].Dial(g.ctx, g.l.Addr(), q, roce.DialOptions{PrivateData: private})
		var r *roce.RejectError
		if !errors.As(err, &r) || r.Reason != roce.RejectConsumer {
			t.Errorf("%s: Dial() = %v, want a rejection", name, err)
		}
	}
	// Refused is called after the rejection was sent.
	for end := time.Now().Add(10 * time.Second); refusals.Load() != 6; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("Refused was called %d times, want 6", refusals.Load())
		}
	}
	g.conn[0], err = Dial(g.ctx, g.Dev[0], g.l.Addr(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	g.conn[1] = <-accepted
}

// Forged requests, whose senders never confirm, do not keep an honest peer from connecting.
func TestForgedFlood(t *testing.T) {
	g := newRig(t, testbed.Config{Link: loopback.Config{Ports: 3}})
	g.listen(ListenConfig{})
	forger := testbed.NewForger(g.Link, 2, 1)
	own := Limits{Proactive, MaxQPs, 1, 1 << 20, 1 << 12}
	for range 100 {
		if err := forger.REQ(testPort, own.put()); err != nil {
			t.Fatal(err)
		}
	}
	accepted := make(chan *Conn, 1)
	go func() {
		c, err := g.l.Accept(g.ctx)
		if err != nil {
			t.Errorf("Accept() = %v", err)
		}
		accepted <- c
	}()
	var err error
	if g.conn[0], err = Dial(g.ctx, g.Dev[0], g.l.Addr(), Config{DataQPs: 4}); err != nil {
		t.Fatal(err)
	}
	g.conn[1] = <-accepted
}

// TestParsers checks what a peer may send in private data.
func TestParsers(t *testing.T) {
	good := Limits{Paper, 8, 2, 1 << 20, 1 << 12}
	if l, err := parseLimits(good.put()); err != nil || l != good {
		t.Errorf("parseLimits() = %v, %v, want %v", l, err, good)
	}
	for n := range privateLen {
		if _, err := parseLimits(good.put()[:n]); !errors.Is(err, ErrPeer) {
			t.Errorf("limits of %d bytes: %v, want ErrPeer", n, err)
		}
	}
	for name, change := range map[string]func(l *Limits){
		"no QPs":     func(l *Limits) { l.DataQPs = 0 },
		"many QPs":   func(l *Limits) { l.DataQPs = MaxQPs + 1 },
		"least QPs":  func(l *Limits) { l.MinDataQPs = 9 },
		"size":       func(l *Limits) { l.BlockSize = MaxBlockSize + 1 },
		"small":      func(l *Limits) { l.BlockSize = core.MinBlockSize - 1 },
		"least size": func(l *Limits) { l.MinBlockSize = 1<<20 + 1 },
	} {
		l := good
		change(&l)
		if _, err := parseLimits(l.put()); !errors.Is(err, ErrPeer) {
			t.Errorf("%s: parseLimits() = %v, want ErrPeer", name, err)
		}
	}
	a := agreement{Paper, 3, 1 << 16}
	if got, conn, err := parseReply(a.put(77), good); err != nil || got != a || conn != 77 {
		t.Errorf("parseReply() = %v, %d, %v, want %v, 77", got, conn, err, a)
	}
	for _, bad := range []agreement{
		{Proactive, 3, 1 << 16}, {Paper, 1, 1 << 16}, {Paper, 9, 1 << 16}, {Paper, 3, 1 << 21},
		{Paper, 3, 1 << 11},
	} {
		if _, _, err := parseReply(bad.put(77), good); !errors.Is(err, ErrPeer) {
			t.Errorf("parseReply() of %v = %v, want ErrPeer", bad, err)
		}
	}
}

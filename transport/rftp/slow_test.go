package rftp

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// kernelRetry is how long the kernel's rdma_cm takes to repeat a REQ that was lost.
const kernelRetry = 6200 * time.Millisecond

// slowDialer is a connection of device 0 to device 1 whose control QP is connected.
type slowDialer struct {
	*Conn
	addr netip.AddrPort
	id   uint64 // of the connection
}

// dialSlowly connects the control QP. The test connects the data QPs.
func (g *rig) dialSlowly(cfg Config) *slowDialer {
	g.Helper()
	g.must(cfg.check())
	c, err := newConn(g.Dev[0], cfg, cfg.MinBlockSize, nil)
	if err != nil {
		g.Fatal(err)
	}
	g.conn[0] = c
	d := &slowDialer{Conn: c, addr: g.l.Addr()}
	rc, err := g.Dev[0].Dial(g.Context(), d.addr, c.ctl, roce.DialOptions{
		ConnectOptions: c.connect(true), PrivateData: c.own.putRequest(0)})
	if err != nil {
		g.Fatal(err)
	}
	a, id, err := parseReply(rc.PrivateData(), c.own)
	g.must(errors.Join(err, c.agree(a)))
	d.id, c.rcs = id, append([]*roce.Conn{rc}, make([]*roce.Conn, a.qps)...)
	return d
}

// dataQP connects data QP i.
func (d *slowDialer) dataQP(g *rig, i int) {
	g.Helper()
	var err error
	if d.rcs[1+i], err = d.dialData(g.Context(), d.addr, d.id, i); err != nil {
		g.Fatalf("data QP %d: %v", i, err)
	}
}

// A peer that connects one data QP after the other, and loses two REQs of each, is accepted.
func TestSlowDataQPs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, testbed.Config{})
		cfg := small
		cfg.DataQPs = 4
		g.listen(ListenConfig{Config: cfg, Refused: func(_ netip.AddrPort, err error) {
			t.Errorf("the listener refuses: %v", err)
		}})
		accepted := make(chan error, 1)
		go func() {
			var err error
			g.conn[1], err = g.l.Accept(t.Context())
			accepted <- err
		}()
		d := g.dialSlowly(cfg)
		for i := range d.rcs[1:] {
			time.Sleep(2 * kernelRetry)
			d.dataQP(g, i)
		}
		g.must(d.start())
		g.must(<-accepted)
		sent := make(chan error, 1)
		go func() {
			sent <- errors.Join(send(t.Context(), g.conn[0], 8, 100), d.Finish(t.Context()))
		}()
		if got, err := receive(t.Context(), g.conn[1]); err != nil || got[1] != 8 {
			t.Errorf("receive() = %v, %v, want 8 blocks of session 1", got, err)
		}
		g.must(<-sent)
	})
}

// The listener gives up a peer that connects no further data QP, and later does not know it any
// more.
func TestMissingDataQPs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, testbed.Config{})
		refused := make(chan error, 1)
		g.listen(ListenConfig{Config: small, Refused: func(_ netip.AddrPort, err error) {
			refused <- err
		}})
		go func() { _, _ = g.l.Accept(t.Context()) }() // until Close
		d := g.dialSlowly(small)
		time.Sleep(kernelRetry)
		d.dataQP(g, 0)
		begin := time.Now()
		err := <-refused
		if took := time.Since(begin); !errors.Is(err, errLate) || took < dataTime ||
			took > dataTime+time.Second {
			t.Errorf("after %v, the listener refuses with %v; want %v after %v", took, err, errLate,
				dataTime)
		}
		select {
		case <-d.rcs[0].Done():
		case <-time.After(time.Second):
			t.Error("the connection of the control QP stays")
		}
		if _, err := d.dialData(t.Context(), d.addr, d.id, 1); !errors.Is(err, ErrLost) {
			t.Errorf("the next data QP: %v, want %v", err, ErrLost)
		}
	})
}

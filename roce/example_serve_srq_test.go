package roce_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
)

// pooled is a server whose clients share the buffers of one pool. Each buffer is posted to the SRQ,
// or has a request that is being answered.
type pooled struct {
	srq  *roce.SRQ
	pool *roce.BufferPool
}

// post posts the buffer with an ID.
func (s *pooled) post(id uint64) error {
	b, _ := s.pool.Buffer(id)
	return s.srq.PostRecv(roce.RecvWR{ID: id, SGEs: []roce.SGE{b.SGE(0, s.pool.Size())}})
}

// serve answers the requests of one client. The answer is the request in upper case, in the same
// buffer.
func (s *pooled) serve(ctx context.Context, c *roce.Conn) error {
	qp, cq, wcs := c.QP(), c.QP().RecvCQ(), make([]roce.WC, 16)
	for {
		n, err := cq.Wait(ctx, wcs)
		if err != nil {
			if errors.Is(context.Cause(ctx), roce.ErrDisconnected) {
				return nil
			}
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.Err() != nil || wc.Opcode != roce.WCRecv { // the buffer is free
				err = errors.Join(err, s.post(wc.ID))
				continue
			}
			b, _ := s.pool.Buffer(wc.ID)
			text := b.Bytes()[:wc.ByteLen]
			for i, x := range text {
				if 'a' <= x && x <= 'z' {
					text[i] = x - 'a' + 'A'
				}
			}
			if e := qp.PostSend(roce.SendWR{ID: wc.ID, Op: roce.OpSend, Flags: roce.Signaled,
				SGEs: []roce.SGE{b.SGE(0, len(text))}}); e != nil {
				err = errors.Join(err, e, s.post(wc.ID))
			}
		}
		if err != nil {
			return err
		}
	}
}

// release gives back all buffers of a client that leaves, or whose connection was not established.
func (s *pooled) release(qp *roce.QP) {
	err := qp.Cancel()
	cq, wcs := qp.RecvCQ(), make([]roce.WC, 16)
	for n := cq.Poll(wcs); n > 0; n = cq.Poll(wcs) {
		for _, wc := range wcs[:n] {
			err = errors.Join(err, s.post(wc.ID))
		}
	}
	if err != nil {
		log.Print(err)
	}
}

// A server with a shared receive queue: 16 buffers serve all clients together. With ServeConfig.PD,
// the queue pairs of all clients can use them.
func ExampleServeConfig_srq() {
	client, server, done := newHosts(roce.RC)
	defer done()
	const buffers, size = 16, 256
	pool, err := server.pd.NewBufferPool(size, buffers, roce.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	srq, err := server.dev.CreateSRQ(server.pd, roce.SRQConfig{Depth: buffers})
	if err != nil {
		log.Fatal(err)
	}
	s := &pooled{srq, pool}
	for b, ok := pool.TryGet(); ok; b, ok = pool.TryGet() {
		if err := s.post(b.ID()); err != nil {
			log.Fatal(err)
		}
	}
	l, err := server.dev.Listen(netip.MustParseAddrPort("10.77.0.2:7471"), roce.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	cfg := roce.ServeConfig{PD: server.pd, QP: roce.QPConfig{SRQ: srq},
		Done: s.release}
	go func() { served <- l.Serve(ctx, cfg, s.serve) }()

	for _, name := range []string{"Ada", "Grace"} {
		qp, err := client.dev.CreateQP(client.pd, roce.QPConfig{SendCQ: client.cq})
		if err != nil {
			log.Fatal(err)
		}
		conn, err := client.dev.Dial(ctx, l.Addr(), qp, roce.DialOptions{})
		if err != nil {
			log.Fatal(err)
		}
		if err := qp.PostRecv(roce.RecvWR{SGEs: []roce.SGE{client.mr.SGE(0, size)}}); err != nil {
			log.Fatal(err)
		}
		if err := qp.PostSend(roce.SendWR{Op: roce.OpSend, Inline: []byte(name)}); err != nil {
			log.Fatal(err)
		}
		wc := client.wait()
		fmt.Printf("%s, %v\n", client.mr.Bytes()[:wc.ByteLen], wc.Status)
		if err := conn.Close(); err != nil {
			log.Fatal(err)
		}
	}
	stop()
	fmt.Println(<-served)
	fmt.Println(srq.Len(), "receives are posted")
	// Output:
	// ADA, success
	// GRACE, success
	// <nil>
	// 16 receives are posted
}

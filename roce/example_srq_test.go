package roce_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gorxe/gorxe/roce"
)

// A shared receive queue: the queue pairs of b take their receives from one pool of buffers, so
// that the pool fits the messages of all clients together and not those of each one.
func ExampleSRQ() {
	a, b, done := newHosts(roce.RC)
	defer done()
	const buffers, size = 16, 256
	srq, err := b.dev.CreateSRQ(b.pd, roce.SRQConfig{Depth: buffers})
	if err != nil {
		log.Fatal(err)
	}
	for i := range buffers { // the ID of a receive is the number of its buffer
		if err := srq.PostRecv(roce.RecvWR{ID: uint64(i),
			SGEs: []roce.SGE{b.mr.SGE(i*size, size)}}); err != nil {
			log.Fatal(err)
		}
	}

	ctx := context.Background()
	client := map[roce.QPN]string{} // by the number of b's queue pair
	for _, name := range []string{"Ada", "Grace"} {
		ours, err := b.dev.CreateQP(b.pd, roce.QPConfig{SendCQ: b.cq, SRQ: srq})
		if err != nil {
			log.Fatal(err)
		}
		theirs, err := a.dev.CreateQP(a.pd, roce.QPConfig{SendCQ: a.cq})
		if err != nil {
			log.Fatal(err)
		}
		if err := ours.Connect(ctx, theirs.Local(), roce.ConnectOptions{}); err != nil {
			log.Fatal(err)
		}
		if err := theirs.Connect(ctx, ours.Local(), roce.ConnectOptions{}); err != nil {
			log.Fatal(err)
		}
		client[ours.QPN()] = name
		if err := theirs.PostSend(roce.SendWR{Op: roce.OpSend, Inline: []byte("hello"),
			Flags: roce.Signaled}); err != nil {
			log.Fatal(err)
		}
		wc := b.wait()
		buf := b.mr.Bytes()[wc.ID*size:][:wc.ByteLen]
		fmt.Printf("%s: %s\n", client[wc.QPN], buf)
		// The buffer is free again.
		if err := srq.PostRecv(roce.RecvWR{ID: wc.ID,
			SGEs: []roce.SGE{b.mr.SGE(int(wc.ID)*size, size)}}); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(srq.Len(), "receives are posted")
	// Output:
	// Ada: hello
	// Grace: hello
	// 16 receives are posted
}

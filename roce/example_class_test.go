package roce_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// A short WRITE in class 7 overtakes a bulk WRITE in class 0 that was posted earlier, on a link of
// 1 Gb/s. The bulk WRITE takes 8 ms.
func ExampleWithClasses() {
	const bulkSize, urgentSize = 1 << 20, 1 << 10
	link, err := loopback.NewLink(loopback.Config{Virtual: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := link.SetBandwidth(0, 1e9); err != nil {
		log.Fatal(err)
	}
	sim, ctx := loopback.NewSim(link), context.Background()
	var mrs [2]*roce.MR
	var bulk, urgent [2]*roce.QP
	for i := range mrs {
		dev, err := roce.New(link.Port(i),
			roce.WithExpert(roce.Expert{Clock: link.Now, Wait: sim.Wait}),
			roce.WithClasses([roce.NumClasses]roce.ClassConfig{
				0: {Preempt: 16 << 10}, // higher classes may interrupt class 0 every 16 KiB
			}))
		if err != nil {
			log.Fatal(err)
		}
		defer dev.Close()
		sim.Add(dev)
		pd, err := dev.AllocPD()
		if err != nil {
			log.Fatal(err)
		}
		if mrs[i], err = pd.AllocMR(bulkSize, roce.LocalWrite|roce.RemoteWrite); err != nil {
			log.Fatal(err)
		}
		for class, qps := range map[int]*[2]*roce.QP{0: &bulk, 7: &urgent} {
			cq, err := dev.CreateCQ(16)
			if err != nil {
				log.Fatal(err)
			}
			c := roce.QPConfig{SendCQ: cq}
			if i == 0 {
				c.Class = class // the other side adopts it
			}
			if qps[i], err = dev.CreateQP(pd, c); err != nil {
				log.Fatal(err)
			}
		}
	}
	for _, qps := range [][2]*roce.QP{bulk, urgent} {
		for i := range qps {
			if err := qps[i].Connect(ctx, qps[1-i].Local(), roce.ConnectOptions{}); err != nil {
				log.Fatal(err)
			}
		}
	}
	// write returns how long a WRITE takes.
	write := func(q *roce.QP, n int) time.Duration {
		start := link.Now()
		if err := q.PostSend(roce.SendWR{Op: roce.OpWrite, SGEs: []roce.SGE{mrs[0].SGE(0, n)},
			RemoteAddr: mrs[1].Addr(), RKey: mrs[1].RKey()}); err != nil {
			log.Fatal(err)
		}
		if err := q.Drain(ctx); err != nil {
			log.Fatal(err)
		}
		return time.Duration(link.Now() - start)
	}
	sim.Go(func() {
		fmt.Println("bulk: more than 8 ms:", write(bulk[0], bulkSize) > 8*time.Millisecond)
	})
	sim.Go(func() {
		if err := sim.Sleep(time.Millisecond); err != nil {
			log.Fatal(err)
		}
		fmt.Println("urgent: less than 0.3 ms:", write(urgent[0], urgentSize) < 300*time.Microsecond)
	})
	if err := sim.Run(time.Minute); err != nil {
		log.Fatal(err)
	}
	a, err := urgent[1].Query()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("class of the other side:", a.Class)
	// Output:
	// urgent: less than 0.3 ms: true
	// bulk: more than 8 ms: true
	// class of the other side: 7
}

package roce_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// Stats tells how a connection uses the network. Here one device supports selective repeat and the
// other one does not, so the connection uses go-back-N.
func ExampleQP_Stats() {
	link, err := loopback.NewLink(loopback.Config{Seed: 1, Plan: loopback.Plan{Loss: 0.01}})
	if err != nil {
		log.Fatal(err)
	}
	var qps [2]*roce.QP
	for i, opts := range [][]roce.Option{
		{roce.WithCongestionControl(roce.CongestionDCQCN)},
		{roce.WithSelectiveRepeat(false)},
	} {
		dev, err := roce.New(link.Port(i), opts...)
		if err != nil {
			log.Fatal(err)
		}
		defer dev.Close()
		pd, err := dev.AllocPD()
		if err != nil {
			log.Fatal(err)
		}
		cq, err := dev.CreateCQ(256)
		if err != nil {
			log.Fatal(err)
		}
		if qps[i], err = dev.CreateQP(pd, roce.QPConfig{SendCQ: cq}); err != nil {
			log.Fatal(err)
		}
		fmt.Println("supported:", qps[i].Local().Features == roce.SelectiveRepeat)
	}
	for i := range qps {
		if err := qps[i].Connect(context.Background(), qps[1-i].Local(),
			roce.ConnectOptions{}); err != nil {
			log.Fatal(err)
		}
	}
	for _, q := range qps {
		s, err := q.Stats()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("used:", s.SelectiveRepeat, "congestion control:", s.Congestion)
	}
	// Output:
	// supported: true
	// supported: false
	// used: false congestion control: dcqcn
	// used: false congestion control: adaptive
}

package rftp

import (
	"errors"
	"io"
	"runtime"
	"testing"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/drive"
)

// TestNoAllocations covers the path of a block: GetFree, Send, GetReady, PutFree and the credits.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, p := range []roce.Progress{roce.Auto, roce.Manual} {
		for _, mode := range []Mode{Proactive, Paper, OnDemand} {
			t.Run(p.String()+" "+mode.String(), func(t *testing.T) {
				g := newRig(t, testbed.Config{Options: []roce.Option{roce.WithProgress(p)}})
				if p == roce.Manual {
					for _, d := range g.Dev {
						g.stop = append(g.stop, drive.Device(d))
					}
				}
				c := Config{BlockSize: 8192, Pool: 4 * 8192, SourcePool: 4 * 8192, Mode: mode}
				g.connect(c, c)
				s, err := g.conn[0].Open(g.ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				got := make(chan struct{}, 1)
				ended := make(chan error, 1)
				go func() {
					for {
						r, err := g.conn[1].GetReady(g.ctx)
						if err != nil {
							if errors.Is(err, ErrPeerClosed) || errors.Is(err, io.EOF) {
								err = nil
							}
							ended <- err
							return
						}
						if r.Kind != Data {
							continue
						}
						if err := g.conn[1].PutFree(r.Block); err != nil {
							ended <- err
							return
						}
						got <- struct{}{}
					}
				}()
				one := func() {
					b, err := s.GetFree(g.ctx)
					if err != nil {
						t.Fatal(err)
					}
					b.Len = len(b.Data)
					if err := s.Send(b); err != nil {
						t.Fatal(err)
					}
					for {
						select {
						case <-got:
							return
						case err := <-ended:
							t.Fatalf("the sink ended: %v", err)
						default:
							g.conn[0].Progress() // Manual
							runtime.Gosched()
						}
					}
				}
				for range 100 {
					one()
				}
				if n := testing.AllocsPerRun(100, one); n != 0 {
					t.Errorf("%v allocations per block, want 0", n)
				}
				s.End()
				g.must(g.conn[0].Finish(g.ctx))
				g.must(<-ended)
			})
		}
	}
}

package rftp

import (
	"testing"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/drive"
)

// TestTransfer sends sessions over all modes, numbers of QPs and kinds of progress.
func TestTransfer(t *testing.T) {
	for name, c := range map[string]struct {
		bed testbed.Config
		cfg Config
	}{
		"one QP":       {},
		"many QPs":     {cfg: Config{DataQPs: 8}},
		"paper":        {cfg: Config{Mode: Paper, DataQPs: 2}},
		"on demand":    {cfg: Config{Mode: OnDemand, DataQPs: 2}},
		"manual":       {bed: testbed.Config{Options: []roce.Option{roce.WithProgress(roce.Manual)}}},
		"driven":       {cfg: Config{DataQPs: 2, Drive: true}},
		"veth":         {bed: testbed.Config{Veth: true}, cfg: Config{DataQPs: 3}},
		"driven, veth": {bed: testbed.Config{Veth: true}, cfg: Config{Drive: true}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, c.bed)
			if name == "manual" {
				for _, d := range g.Dev {
					g.stop = append(g.stop, drive.Device(d))
				}
			}
			c.cfg.BlockSize = 8192
			c.cfg.Pool, c.cfg.SourcePool = 16*8192, 8*8192
			g.connect(c.cfg, c.cfg)
			sent := make(chan error, 1)
			go func() {
				for i := range 5 {
					if err := send(g.ctx, g.conn[0], 40*i, 8192-100*i); err != nil {
						sent <- err
						return
					}
				}
				sent <- g.conn[0].Finish(g.ctx)
			}()
			got, err := receive(g.ctx, g.conn[1])
			if err != nil {
				t.Fatal(err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				if n, ok := got[uint32(i+1)]; !ok || n != 40*i {
					t.Errorf("%d blocks of session %d, want %d", n, i+1, 40*i)
				}
			}
		})
	}
}

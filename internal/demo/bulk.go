package demo

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	bulkMessage = 1 << 20  // bytes of one WRITE
	bulkRegion  = 32 << 20 // bytes of the memory on either side: the data goes through it pass by pass
	bulkDepth   = 8        // WRITEs outstanding
)

// bulk WRITEs total bytes, a multiple of bulkMessage, and compares all of it. progress hears of bytes done.
func (r *rig) bulk(ctx context.Context, total int64, progress func(n int)) (*Op, error) {
	src, err := r.a.pd.AllocMR(bulkRegion, roce.LocalWrite)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	dst, err := r.b.pd.AllocMR(bulkRegion, roce.LocalWrite|roce.RemoteWrite)
	if err != nil {
		return nil, err
	}
	defer dst.Close()
	b := &bulk{rig: r, src: src, dst: dst, lat: cli.NewLatency(), progress: progress}
	before := r.retransmits()
	random := rand.NewChaCha8([32]byte{0: byte(r.seed), 1: byte(r.seed >> 8), 2: byte(r.seed >> 16), 3: byte(r.seed >> 24)})
	for left := total; left > 0; {
		n := min(left, bulkRegion)
		_, _ = random.Read(src.Bytes()[:n]) // never fails
		if err := b.pass(ctx, int(n/bulkMessage)); err != nil {
			return nil, err
		}
		if !bytes.Equal(src.Bytes()[:n], dst.Bytes()[:n]) {
			return nil, fmt.Errorf("%w: bulk WRITE: the data is not what was sent", errWrong)
		}
		left -= n
	}
	return &Op{
		Op: "bulk WRITE", Bytes: bulkMessage, Count: total / bulkMessage, Gbps: cli.Round(cli.Gbps(total, b.spent), 3),
		P50: cli.Micros(b.lat.Percentile(50)), P99: cli.Micros(b.lat.Percentile(99)),
		Retransmits: r.retransmits() - before,
	}, nil
}

// bulk is the bulk WRITE while it runs.
type bulk struct {
	*rig
	src, dst *roce.MR
	lat      *cli.Latency
	spent    time.Duration
	progress func(n int)
	posted   [bulkRegion / bulkMessage]time.Time
}

// pass WRITEs the first n messages of the region.
func (b *bulk) pass(ctx context.Context, n int) error {
	start := time.Now()
	last := start
	var wcs [bulkDepth]roce.WC
	idle := idler{}
	for sent, done := 0, 0; done < n; {
		for ; sent < n && sent-done < bulkDepth; sent++ {
			if err := b.post(sent); err != nil {
				return err
			}
		}
		k := b.a.cq.Poll(wcs[:])
		if k == 0 {
			sleep, err := idle.vain(ctx)
			if err == nil && sleep {
				k, err = doze(ctx, b.a.cq, wcs[:])
			}
			if err != nil {
				return fmt.Errorf("bulk WRITE: %w", err)
			}
		}
		if k == 0 {
			continue
		}
		idle = idler{}
		last = time.Now()
		for i := range wcs[:k] {
			if wcs[i].Status != roce.Success {
				return fmt.Errorf("bulk WRITE: %w", session.StatusError(&wcs[i]))
			}
			b.lat.Record(last.Sub(b.posted[wcs[i].ID]))
			b.progress(bulkMessage)
		}
		done += k
	}
	b.spent += last.Sub(start)
	return nil
}

func (b *bulk) post(i int) error {
	b.posted[i] = time.Now()
	return b.a.qps[rc].PostSend(roce.SendWR{
		ID: uint64(i), Op: roce.OpWrite, Flags: roce.Signaled,
		SGEs:       []roce.SGE{b.src.SGE(i*bulkMessage, bulkMessage)},
		RemoteAddr: b.dst.Addr() + uint64(i*bulkMessage), RKey: b.dst.RKey(),
	})
}

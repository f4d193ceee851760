package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/verify"
	"github.com/gorxe/gorxe/roce"
)

const (
	bulkMessage = 1 << 20  // bytes of a WRITE
	bulkRegion  = 32 << 20 // bytes of the regions; more data takes several passes
	bulkDepth   = 8        // WRITEs in flight
)

// bulk WRITEs and compares total bytes, a multiple of bulkMessage. It calls progress with the
// numbers of bytes that completed.
func (d *Demo) bulk(ctx context.Context, total int64, progress func(n int)) (*Op, error) {
	src, err := d.a.PD.AllocMR(bulkRegion, roce.LocalWrite)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	dst, err := d.b.PD.AllocMR(bulkRegion, roce.LocalWrite|roce.RemoteWrite)
	if err != nil {
		return nil, err
	}
	defer dst.Close()
	b := &bulk{Demo: d, src: src, dst: dst, lat: cli.NewLatency(), progress: progress}
	before := d.retransmits()
	random := rand.NewChaCha8([32]byte{byte(d.Seed), byte(d.Seed >> 8), byte(d.Seed >> 16),
		byte(d.Seed >> 24)})
	for left := total; left > 0; {
		n := min(left, bulkRegion)
		_, _ = random.Read(src.Bytes()[:n]) // never fails
		if err := b.pass(ctx, int(n/bulkMessage)); err != nil {
			return nil, fmt.Errorf("bulk WRITE: %w", err)
		}
		if from, to := verify.Diff(src.Bytes()[:n], dst.Bytes()[:n]); from < to {
			return nil, fmt.Errorf("%w: bulk WRITE: bytes %d to %d differ", errWrong, from, to)
		}
		left -= n
	}
	op := newOp("bulk WRITE", bulkMessage, total/bulkMessage, b.spent, b.lat)
	op.Count, op.Retransmits = total/bulkMessage, d.retransmits()-before
	return &op, nil
}

// bulk is the state of a bulk WRITE.
type bulk struct {
	*Demo
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
	p := poller{}
	for sent, done := 0, 0; done < n; {
		for ; sent < n && sent-done < bulkDepth; sent++ {
			if err := b.post(sent); err != nil {
				return err
			}
		}
		k := b.a.CQ.Poll(wcs[:])
		if k == 0 {
			sleep, err := p.empty(ctx)
			if err == nil && sleep {
				k, err = waitBriefly(ctx, b.a.CQ, wcs[:])
			}
			if err != nil {
				return err
			}
		}
		if k == 0 {
			continue
		}
		p = poller{}
		last = time.Now()
		for i := range wcs[:k] {
			if err := endpoint.StatusError(&wcs[i]); err != nil {
				return err
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
	return b.a.QPs[rc].PostSend(roce.SendWR{
		ID: uint64(i), Op: roce.OpWrite, Flags: roce.Signaled,
		SGEs:       []roce.SGE{b.src.SGE(i*bulkMessage, bulkMessage)},
		RemoteAddr: b.dst.Addr() + uint64(i*bulkMessage), RKey: b.dst.RKey(),
	})
}

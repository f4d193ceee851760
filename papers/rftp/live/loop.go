package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp"
)

// manyBuffers is the memory of toolWriteMany on each side: more than the caches of a core hold, and
// about what transport/rftp has in flight.
const manyBuffers = 4 << 20

// inMemory measures one tool of a figure between two devices of this process, on the link in
// memory. CPU time is that of the process.
func (b *bench) inMemory(ctx context.Context, f *figure, tool string) (s sample, err error) {
	bed, err := testbed.New(testbed.Config{MTU: pairMTU})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	var r result
	switch tool {
	case toolRFTP:
		r, err = rftpInMemory(ctx, bed, b.Size, f.streams)
	case toolWrite:
		r, err = writes(ctx, bed, b.Size, f.streams, perfSize*f.streams)
	case toolWriteMany:
		r, err = writes(ctx, bed, b.Size, f.streams, max(manyBuffers, perfSize*f.streams))
	default:
		err = fmt.Errorf("unknown tool %q", tool)
	}
	if err != nil {
		return s, err
	}
	s.rate = float64(r.Bytes) * 8 / float64(r.Took.Nanoseconds())
	s.cpu = r.CPU.Seconds() / (float64(r.Bytes) / 1e9)
	return s, nil
}

func rftpInMemory(ctx context.Context, bed *testbed.Testbed, size int64, streams int) (
	r result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addr := bed.Addr(1, copyPort)
	l, err := rftp.Listen(bed.Dev[1], addr, rftp.ListenConfig{Config: config(streams)})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	type received struct {
		result
		err error
	}
	done := make(chan received, 1)
	go func() {
		r, err := receiveBlocks(ctx, l, kit.ProcessTime)
		done <- received{r, err}
	}()
	r, err = sendBlocks(ctx, bed.Dev[0], addr, size, streams, kit.ProcessTime)
	if err != nil {
		cancel()
	}
	peer := <-done
	if err == nil && peer.err == nil && peer.Bytes != r.Bytes {
		err = fmt.Errorf("the receiver got %d of %d bytes", peer.Bytes, r.Bytes)
	}
	return r, errors.Join(err, peer.err)
}

// depth is the number of work requests that each queue pair keeps outstanding.
const depth = 128

// writes sends with WRITEs of perfSize bytes, as "gorxe perf write-bw" does. They go from and to
// memory bytes on each side, of which each QP uses a part in turn.
func writes(ctx context.Context, bed *testbed.Testbed, size int64, streams, memory int) (
	r result, err error) {
	var e [2]*endpoint.Endpoint
	for i := range e {
		e[i], err = endpoint.New(bed.Dev[i], endpoint.Config{QPs: streams, Memory: memory,
			Access: roce.LocalWrite | roce.RemoteWrite, QP: roce.QPConfig{SendDepth: depth}})
		if err != nil {
			return r, err
		}
	}
	if err := endpoint.Connect(ctx, e[0], e[1], roce.ConnectOptions{}); err != nil {
		return r, err
	}
	remote := e[1].MR.Remote()
	part := memory / streams
	next := make([]int, streams) // offsets in the parts
	posted := int64(0)
	post := func(qp int) error {
		posted += perfSize
		at := qp*part + next[qp]
		if next[qp] += perfSize; next[qp]+perfSize > part {
			next[qp] = 0
		}
		return e[0].QPs[qp].PostSend(roce.SendWR{ID: uint64(qp), Op: roce.OpWrite,
			Flags: roce.Signaled, SGEs: []roce.SGE{e[0].MR.SGE(at, perfSize)},
			RemoteAddr: remote.Addr + uint64(at), RKey: remote.RKey})
	}
	begin, before := time.Now(), kit.ProcessTime()
	for range depth {
		for qp := range e[0].QPs {
			if err := post(qp); err != nil {
				return r, err
			}
		}
	}
	wcs := make([]roce.WC, depth)
	for r.Bytes < posted {
		n, err := e[0].CQ.Wait(ctx, wcs)
		if err != nil {
			return r, err
		}
		for i := range wcs[:n] {
			if err := endpoint.StatusError(&wcs[i]); err != nil {
				return r, err
			}
			r.Bytes += perfSize
			if posted < size {
				if err := post(int(wcs[i].ID)); err != nil {
					return r, err
				}
			}
		}
	}
	r.Took, r.CPU = time.Since(begin), kit.ProcessTime()-before
	return r, nil
}

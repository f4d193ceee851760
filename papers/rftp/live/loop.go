package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp"
)

// inMemory measures one tool of a figure between two devices of this process, on the link in
// memory. There, CPU time cannot be attributed to them.
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
		r, err = writes(ctx, bed, b.Size, f.streams)
	default:
		err = fmt.Errorf("unknown tool %q", tool)
	}
	if err != nil {
		return s, err
	}
	s.rate = float64(r.Bytes) * 8 / float64(r.Took.Nanoseconds())
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
	none := func() time.Duration { return 0 }
	go func() {
		r, err := receiveBlocks(ctx, l, none)
		done <- received{r, err}
	}()
	r, err = sendBlocks(ctx, bed.Dev[0], addr, size, streams, none)
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

// writes sends with WRITEs of perfSize bytes, as "gorxe perf write-bw" does.
func writes(ctx context.Context, bed *testbed.Testbed, size int64, streams int) (
	r result, err error) {
	var e [2]*endpoint.Endpoint
	for i := range e {
		e[i], err = endpoint.New(bed.Dev[i], endpoint.Config{QPs: streams, Memory: perfSize * streams,
			Access: roce.LocalWrite | roce.RemoteWrite, QP: roce.QPConfig{SendDepth: depth}})
		if err != nil {
			return r, err
		}
	}
	if err := endpoint.Connect(ctx, e[0], e[1], roce.ConnectOptions{}); err != nil {
		return r, err
	}
	remote := e[1].MR.Remote()
	posted := int64(0)
	post := func(qp int) error {
		posted += perfSize
		return e[0].QPs[qp].PostSend(roce.SendWR{ID: uint64(qp), Op: roce.OpWrite,
			Flags: roce.Signaled, SGEs: []roce.SGE{e[0].MR.SGE(qp*perfSize, perfSize)},
			RemoteAddr: remote.Addr + uint64(qp*perfSize), RKey: remote.RKey})
	}
	begin := time.Now()
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
	r.Took = time.Since(begin)
	return r, nil
}

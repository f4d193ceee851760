package statusbyte

import (
	"context"
	"errors"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/gorxe/gorxe/papers/kit"
)

// The cameras of the paper.
const (
	cameraCount = 12
	cameraFrame = 640 * 480 * 3 // bytes of a picture
	cameraRate  = 25            // pictures per second
	cameraWarm  = 200 * time.Millisecond

	cameraPeriod = time.Second / cameraRate
)

// video is the result of a run with all cameras.
type video struct {
	at       []float64 // begin of each period, ms
	rate     []float64 // throughput of each period, 10^6 bytes a second: see arrivals.rates
	cpu      float64   // of both sides, percent of a CPU
	memory   float64   // resident memory of both sides, 10^6 bytes
	more     float64   // what the connections added to it, 10^6 bytes
	pictures int       // arrived
}

// arrivals are the times at which pictures arrived.
type arrivals struct {
	mu sync.Mutex
	at []int64
}

func (a *arrivals) add() {
	a.mu.Lock()
	a.at = append(a.at, now())
	a.mu.Unlock()
}

// rates returns the throughput of each period from time from to time to, and the begin of each
// period in milliseconds. All cameras have their pictures at the begin of a period. After the
// last picture nothing is sent until the next period; as in the paper, this time does not count.
func (a *arrivals) rates(begin, from, to int64) (at, rate []float64) {
	slices.Sort(a.at)
	for period := begin; period < to; period += int64(cameraPeriod) {
		pictures, last := 0, int64(0)
		for _, t := range a.at {
			if t >= period && t < period+int64(cameraPeriod) {
				pictures, last = pictures+1, t
			}
		}
		if period < from || pictures == 0 {
			continue
		}
		at = append(at, float64(period-begin)/1e6)
		rate = append(rate, float64(pictures)*cameraFrame/(float64(last-period)/1e9)/1e6)
	}
	return at, rate
}

// cameras lets all cameras send for the time t: over one connection with the status byte, over one
// connection each with the sliding window. The devices need Auto progress.
func (d *devices) cameras(ctx context.Context, transport string, t time.Duration) (
	v video, err error) {
	runtime.GC()
	debug.FreeOSMemory()
	idle := kit.Resident()
	connections := 1
	if transport == slidingWindow {
		connections = cameraCount
	}
	a := &arrivals{at: make([]int64, 0, 2*cameraCount*cameraRate*int(t/time.Second+1))}
	var all []*stream
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.close())
		}
	}()
	for i := range connections {
		s, err := d.openStream(ctx, transport, basePort+1+uint16(i), a)
		if err != nil {
			return v, err
		}
		all = append(all, s)
	}
	begin, cpu := now(), kit.ProcessTime()
	err = sendPictures(ctx, all, t)
	v.cpu = 100 * float64(kit.ProcessTime()-cpu) / float64(now()-begin)
	v.memory = float64(kit.Resident()) / 1e6
	v.more = v.memory - float64(idle)/1e6
	a.mu.Lock()
	defer a.mu.Unlock()
	v.at, v.rate = a.rates(begin, begin+int64(cameraWarm), begin+int64(t))
	v.pictures = len(a.at)
	return v, err
}

// sendPictures runs the cameras, each in a goroutine. They start together.
func sendPictures(ctx context.Context, all []*stream, t time.Duration) error {
	start := time.Now()
	errs := make([]error, cameraCount)
	var wg sync.WaitGroup
	for i := range cameraCount {
		s := all[i%len(all)]
		wg.Go(func() {
			for next := start; next.Sub(start) < t; next = next.Add(cameraPeriod) {
				time.Sleep(time.Until(next))
				if errs[i] = s.s.send(ctx, uint8(i), cameraFrame); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, s := range all {
		errs = append(errs, s.s.Flush(ctx))
	}
	return errors.Join(errs...)
}

// stream is a connection of one or more cameras, with a goroutine that receives.
type stream struct {
	s    sender
	r    receiver
	done chan error
	stop context.CancelFunc
}

func (d *devices) openStream(
	ctx context.Context, transport string, port uint16, a *arrivals,
) (*stream, error) {
	sh := shape{blocks: blocks, size: cameraFrame}
	l, err := d.listen(transport, sh, port)
	if err != nil {
		return nil, err
	}
	connect, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	st := &stream{done: make(chan error, 1)}
	accepted := make(chan error, 1)
	go func() {
		var err error
		st.r, err = l.accept(connect)
		accepted <- err
	}()
	st.s, err = d.dial(connect, transport, sh, port)
	if err != nil {
		cancel()
	}
	err = errors.Join(err, <-accepted, l.close())
	if err != nil {
		return nil, err
	}
	serve, stop := context.WithCancel(ctx)
	st.stop = stop
	go func() { st.done <- st.receive(serve, a) }()
	return st, nil
}

func (s *stream) receive(ctx context.Context, a *arrivals) error {
	for {
		err := s.r.wait(ctx)
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return err
		}
		a.add()
		if err := s.r.release(); err != nil {
			return err
		}
	}
}

func (s *stream) close() error {
	err := s.s.Close()
	s.stop()
	return errors.Join(err, <-s.done, s.r.Close())
}

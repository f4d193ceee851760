package statusbyte

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/gorxe/gorxe/papers/kit/paper"
)

// The paper's cameras.
const (
	cameraCount = 12
	cameraFrame = 640 * 480 * 3
	cameraRate  = 25
	cameraWarm  = 200 * time.Millisecond
)

// video is what a run of the cameras came to.
type video struct {
	at     []float64 // when turns began, ms
	rate   []float64 // and their throughput, 10^6 bytes a second: see arrivals.rates
	cpu    float64   // percent of a CPU, both ends
	memory float64   // 10^6 bytes resident, both ends
	more   float64   // of them for the connections: what came on top of the idle devices
	frames int       // delivered
}

// arrivals are when frames were handed over.
type arrivals struct {
	mu sync.Mutex
	at []int64
}

func (a *arrivals) add() {
	a.mu.Lock()
	a.at = append(a.at, now())
	a.mu.Unlock()
}

// rates are the throughput of every turn, and when it began. All cameras have their frames at the same time, once in a
// period; then all frames are sent, and nothing until the next turn. Such times do not count, as in the paper: a turn's throughput is that of
// its frames from the turn's beginning to the hand-over of the last one.
func (a *arrivals) rates(begin, from, to int64) (at, rate []float64) {
	const period = int64(time.Second / cameraRate)
	slices.Sort(a.at)
	for turn := begin; turn < to; turn += period {
		frames, last := 0, int64(0)
		for _, t := range a.at {
			if t >= turn && t < turn+period {
				frames, last = frames+1, t
			}
		}
		if turn < from || frames == 0 {
			continue
		}
		at = append(at, float64(turn-begin)/1e6)
		rate = append(rate, float64(frames)*cameraFrame/(float64(last-turn)/1e9)/1e6)
	}
	return at, rate
}

// cameras lets all cameras run for a while: over one connection of the status byte, or one connection each of the sliding
// window. The devices have Auto progress.
func (w *world) cameras(ctx context.Context, lane string, blocks int, d time.Duration) (v video, err error) {
	runtime.GC()
	debug.FreeOSMemory()
	idle := paper.Resident()
	connections := 1
	if lane == laneWindow {
		connections = cameraCount
	}
	a := &arrivals{at: make([]int64, 0, 2*cameraCount*cameraRate*int(d/time.Second+1))}
	var all []*studio
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.close())
		}
	}()
	for i := range connections {
		s, err := w.newStudio(ctx, lane, shape{blocks: blocks, size: cameraFrame}, basePort+1+uint16(i), a)
		if err != nil {
			return v, err
		}
		all = append(all, s)
	}
	begin, cpu := now(), paper.ProcessTime()
	err = film(ctx, all, d)
	wall := now() - begin
	v.cpu = 100 * float64(paper.ProcessTime()-cpu) / float64(wall)
	v.memory = float64(paper.Resident()) / 1e6
	v.more = v.memory - float64(idle)/1e6
	a.mu.Lock()
	defer a.mu.Unlock()
	v.at, v.rate = a.rates(begin, begin+int64(cameraWarm), begin+int64(d))
	v.frames = len(a.at)
	return v, err
}

// film runs the cameras, each a goroutine; they start together.
func film(ctx context.Context, all []*studio, d time.Duration) error {
	const period = time.Second / cameraRate
	start := time.Now()
	errs := make([]error, cameraCount)
	var wg sync.WaitGroup
	for i := range cameraCount {
		s := all[i%len(all)]
		wg.Add(1)
		go func() {
			defer wg.Done()
			for next := start; next.Sub(start) < d; next = next.Add(period) {
				time.Sleep(time.Until(next))
				if errs[i] = s.s.send(ctx, uint8(i), cameraFrame); errs[i] != nil {
					return
				}
			}
		}()
	}
	wg.Wait()
	for _, s := range all {
		errs = append(errs, s.s.flush(ctx))
	}
	return errors.Join(errs...)
}

// studio is a connection of the cameras, with a goroutine that receives.
type studio struct {
	s    sender
	r    receiver
	done chan error
	stop context.CancelFunc
}

func (w *world) newStudio(ctx context.Context, lane string, sh shape, port uint16, a *arrivals) (*studio, error) {
	l, err := w.listen(lane, sh, port)
	if err != nil {
		return nil, err
	}
	dial, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	st := &studio{done: make(chan error, 1)}
	accepted := make(chan error, 1)
	go func() {
		var err error
		st.r, err = l.accept(dial)
		accepted <- err
	}()
	st.s, err = w.dial(dial, lane, sh, port)
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

func (s *studio) receive(ctx context.Context, a *arrivals) error {
	for {
		err := s.r.wait(ctx)
		switch {
		case over(err) || errors.Is(err, context.Canceled):
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

func (s *studio) close() error {
	err := s.s.close()
	s.stop()
	return errors.Join(err, <-s.done, s.r.close())
}

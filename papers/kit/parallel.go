package kit

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
)

// Job is one of several simulations.
type Job struct {
	Name string
	Cost float64 // how long it takes, in any unit
	Run  func(ctx context.Context) error
}

// Parallel runs jobs on all CPUs, those that take longest first, so that all CPUs end at about the
// same time. It shows its progress on stderr if that is a terminal. After an error, which it
// returns with the name of the job, or when ctx ends, no other job starts.
func Parallel(ctx context.Context, jobs []Job, stderr io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	bar := ProgressBar(stderr, len(jobs))
	defer func() { _ = bar.Exit() }()
	sorted := slices.Clone(jobs)
	slices.SortStableFunc(sorted, func(a, b Job) int { return cmp.Compare(b.Cost, a.Cost) })
	queue := make(chan Job, len(sorted))
	for _, j := range sorted {
		queue <- j
	}
	close(queue)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(sorted)) {
		wg.Go(func() {
			for j := range queue {
				if ctx.Err() != nil {
					return
				}
				if err := j.Run(ctx); err != nil {
					cancel(fmt.Errorf("%s: %w", j.Name, err))
					return
				}
				_ = bar.Add(1)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return Ended(ctx)
	}
	return nil
}

package kit

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
)

func TestParallel(t *testing.T) {
	var ran [20]atomic.Int32
	var jobs []Job
	for i := range ran {
		jobs = append(jobs, Job{Name: "a", Cost: float64(i), Run: func(context.Context) error {
			ran[i].Add(1)
			return nil
		}})
	}
	if err := Parallel(t.Context(), jobs, io.Discard); err != nil {
		t.Fatal(err)
	}
	for i := range ran {
		if n := ran[i].Load(); n != 1 {
			t.Errorf("job %d ran %d times, want once", i, n)
		}
	}
	failed := errors.New("failed")
	jobs = append(jobs, Job{Name: "longest", Cost: 100, Run: func(ctx context.Context) error {
		return failed
	}})
	err := Parallel(t.Context(), jobs, io.Discard)
	if !errors.Is(err, failed) || !strings.HasPrefix(err.Error(), "longest: ") {
		t.Errorf("Parallel() = %v, want %q", err, "longest: failed")
	}
}

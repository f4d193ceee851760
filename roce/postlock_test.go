package roce

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// One poster at a time gets the lock, even if it was held for long, as by QP.Close.
func TestPostLock(t *testing.T) {
	l := postLock{new(atomic.Uint32)}
	const posters, posts = 4, 2000
	n := 0
	var started atomic.Int32
	var done sync.WaitGroup
	l.Lock()
	for range posters {
		done.Go(func() {
			started.Add(1)
			for range posts {
				l.Lock()
				n++
				l.Unlock()
			}
		})
	}
	eventually(t, "posters", func() bool { return started.Load() == posters })
	for range posters * lockYields { // until they have given up spinning
		runtime.Gosched()
	}
	if n != 0 {
		t.Error("two posters hold the lock")
	}
	l.Unlock()
	all := make(chan struct{})
	go func() { done.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(deadline):
		t.Fatal("a poster did not get the lock")
	}
	if n != posters*posts {
		t.Errorf("%d posts, want %d", n, posters*posts)
	}
}

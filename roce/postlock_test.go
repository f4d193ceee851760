package roce

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestPostLock: one goroutine at a time holds the lock, also when others wait for long, as during
// QP.Close.
func TestPostLock(t *testing.T) {
	l := postLock{new(atomic.Uint32)}
	const posters, posts = 4, 2000
	n := 0
	var done sync.WaitGroup
	l.Lock()
	for range posters {
		done.Go(func() {
			for range posts {
				l.Lock()
				n++
				l.Unlock()
			}
		})
	}
	time.Sleep(5 * time.Millisecond) // the waiters stop yielding and sleep
	if n != 0 {
		t.Error("two goroutines hold the lock")
	}
	l.Unlock()
	all := make(chan struct{})
	go func() { done.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(deadline):
		t.Fatal("a goroutine still waits for the lock")
	}
	if n != posters*posts {
		t.Errorf("%d posts, want %d", n, posters*posts)
	}
}

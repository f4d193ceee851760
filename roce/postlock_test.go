package roce

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// One at a time, whoever comes: also those who find it held for long, as by QP.Close.
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
	time.Sleep(5 * time.Millisecond) // they give up looking, and sleep
	if n != 0 {
		t.Error("two at a time")
	}
	l.Unlock()
	all := make(chan struct{})
	go func() { done.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(deadline):
		t.Fatal("somebody was forgotten")
	}
	if n != posters*posts {
		t.Errorf("%d posts, want %d", n, posters*posts)
	}
}

//go:build linux

package xdp

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/xdp/veth"
)

// While the owner holds the Port, Close waits and the owner's calls fail without touching released
// resources.
func TestCloseWaitsForHolder(t *testing.T) {
	pair := newPair(t, veth.Options{})
	p := openEnd(t, &pair.A, Options{})
	p.Hold()
	var bufs [4]driver.Buf
	if n := p.Alloc(bufs[:]); n != len(bufs) {
		t.Fatalf("Alloc() = %d", n)
	}
	done := make(chan error)
	go func() { done <- p.Close() }()
	for !p.closed.Load() {
		time.Sleep(time.Millisecond)
	}
	select {
	case <-done:
		t.Fatal("Close did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	if n := p.Receive(bufs[:0]); n != 0 || p.Alloc(bufs[:0]) != 0 {
		t.Error("Receive of a closed Port returned frames")
	}
	p.Free(bufs[:])
	p.Unhold()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

package session

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/testbed"
)

// The memory of a large session is free when its share of the budget is.
func TestMemoryOfEndedSessionIsFree(t *testing.T) {
	bed, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	const bytes = 64 << 20
	b, peer := NewBudget(4*bytes), netip.MustParseAddr("10.77.0.9")
	inUse := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	runtime.GC()
	before := inUse()
	_, release, err := NewWithin(b, bed.Dev[0], peer, peer, Config{
		QPs: 1, SendDepth: 1, RecvDepth: 1, Bytes: bytes / 2, GID: device.AnyGID,
	})
	if err != nil {
		t.Fatal(err)
	}
	if during := inUse(); during < before+bytes {
		t.Fatalf("the session uses %d bytes, want at least %d", during-before, bytes)
	}
	release()
	if used := b.Used(); used != 0 {
		t.Errorf("Used() = %d after the session, want 0", used)
	}
	if after := inUse(); after > before+bytes/2 {
		t.Errorf("the heap has %d bytes more than before the session", after-before)
	}
}

// Sessions of one prefix cannot use the whole memory, whatever their sizes are.
func TestBudgetIsShared(t *testing.T) {
	b := NewBudget(1024)
	var taken []func()
	for _, c := range []struct {
		peer string
		n    int64
		want bool
	}{
		{"2001:db8::1", 513, false}, {"2001:db8::1", 512, true}, {"2001:db8::2", 512, false},
		{"10.0.0.1", 512, false}, {"10.0.0.1", 256, true}, {"10.0.0.2", 128, true},
	} {
		release, err := b.Take(netip.MustParseAddr(c.peer), c.n)
		if (err == nil) != c.want {
			t.Errorf("Take(%s, %d) = %v", c.peer, c.n, err)
		}
		if err != nil && !errors.Is(err, guard.ErrBusy) {
			t.Errorf("Take(%s, %d) = %v, want ErrBusy", c.peer, c.n, err)
		}
		if err == nil {
			taken = append(taken, release)
		}
	}
	if got := b.Used(); got != 896 {
		t.Errorf("Used() = %d, want 896", got)
	}
	for _, release := range taken {
		release()
		release()
	}
	if got := b.Used(); got != 0 {
		t.Errorf("Used() = %d after all were released", got)
	}
}

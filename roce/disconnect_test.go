package roce

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce/cm"
)

// Close of a device retransmits lost DREQs, so that the peers' connections end.
func TestDeviceClosesWithLostDREQs(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		k := newConnPair(t, rigConfig{opts: []Option{WithProgress(p)}})
		_, b := k.meet(t)
		seen := dropFirst(k, 0, 1, cm.AttrDREQ, 2)
		closed := make(chan error, 1)
		go func() { closed <- k.a.Close() }()
		for end := time.Now().Add(deadline); ; k.b.Progress() { // Manual progress
			select {
			case err := <-closed:
				if err != nil {
					t.Fatal(err)
				}
			default:
				if time.Now().After(end) {
					t.Fatalf("Close has not returned after %v", deadline)
				}
				continue
			}
			break
		}
		ends(t, b, ErrDisconnected)
		if n := seen.Load(); n < 3 { // more if the answer is late
			t.Errorf("%d DREQs, want at least 3", n)
		}
	})
}

// Close of a device retransmits DREQs to a silent peer for a limited time.
func TestDeviceClosesWithSilentPeer(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	k.meet(t)
	seen := dropFirst(k, 0, 1, cm.AttrDREQ, 100)
	if err := k.link.SetPlan(1, 0, loopback.Plan{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := k.a.Close(); err != nil {
		t.Fatal(err)
	}
	if d, want := time.Since(begin), firstDREQInterval*(1<<(dreqRetries+1)-1); d < want {
		t.Errorf("Close took %v, want at least %v", d, want)
	}
	if n := seen.Load(); n != 1+dreqRetries {
		t.Errorf("%d DREQs, want %d", n, 1+dreqRetries)
	}
}

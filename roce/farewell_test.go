package roce

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce/cm"
)

// A device that closes has told its peers, even if what it said first was lost: they do not wait for ever.
func TestDeviceClosesWithLostDREQs(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		k := newTalkers(t, rigConfig{opts: []Option{WithProgress(p)}})
		_, b := k.meet(t)
		seen := loseFirst(k, 0, 1, cm.AttrDREQ, 2)
		closed := make(chan error, 1)
		go func() { closed <- k.a.Close() }()
		for end := time.Now().Add(deadline); ; k.b.Progress() { // with Manual progress nobody else would answer
			select {
			case err := <-closed:
				if err != nil {
					t.Fatal(err)
				}
			default:
				if time.Now().After(end) {
					t.Fatal("Close does not return")
				}
				continue
			}
			break
		}
		ends(t, b, ErrDisconnected)
		if n := seen.Load(); n < 3 { // more if the answer takes its time
			t.Errorf("%d DREQs", n)
		}
	})
}

// A peer that does not answer is told a few times, and holds Close up for a moment only.
func TestDeviceClosesWithSilentPeer(t *testing.T) {
	k := newTalkers(t, rigConfig{})
	k.meet(t)
	seen := loseFirst(k, 0, 1, cm.AttrDREQ, 100)
	if err := k.link.SetPlan(1, 0, loopback.Plan{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := k.a.Close(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d < 600*time.Millisecond || d > deadline {
		t.Errorf("Close took %v", d)
	}
	if n := seen.Load(); n != 1+farewells {
		t.Errorf("%d DREQs instead of %d", n, 1+farewells)
	}
}

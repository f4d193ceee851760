package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSimulated(t *testing.T) {
	if Simulated() {
		t.Error("Simulated() = true outside of a bubble")
	}
	synctest.Test(t, func(t *testing.T) {
		if !Simulated() {
			t.Error("Simulated() = false in a bubble")
		}
		time.Sleep(time.Hour)
		if !Simulated() {
			t.Error("Simulated() = false in a bubble after an hour")
		}
	})
}

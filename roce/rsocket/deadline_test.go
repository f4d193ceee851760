package rsocket

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A deadline is a context that ends with the last time that was set.
func TestDeadlineContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadline()
		calls := 0
		context.AfterFunc(d, func() { calls++ })
		stop := context.AfterFunc(d, func() { t.Error("a stopped function runs") })
		if !stop() {
			t.Error("stop() = false")
		}
		d.set(time.Now().Add(time.Second))
		d.set(time.Now().Add(time.Minute)) // replaces it
		time.Sleep(2 * time.Second)
		if err := d.Err(); err != nil {
			t.Errorf("Err() = %v before the deadline", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := d.Err(); err == nil || calls != 1 {
			t.Errorf("Err() = %v with %d calls after the deadline, want an error and 1", err, calls)
		}
		d.set(time.Time{})
		if err := d.Err(); err != nil {
			t.Errorf("Err() = %v without a deadline", err)
		}
		d.close()
		d.set(time.Time{})
		context.AfterFunc(d, func() { calls++ })
		synctest.Wait()
		if err := d.Err(); err == nil || calls != 2 {
			t.Errorf("Err() = %v with %d calls after close, want an error and 2", err, calls)
		}
	})
}

package roce

import (
	"context"
	"errors"
	"testing"
	"time"
)

// While a goroutine drives a device with Auto progress, the protocol runs in its calls only. Then
// the device's own goroutine runs it again.
func TestDrive(t *testing.T) {
	a, b := newRig(t, rigConfig{})
	write := func() {
		must(t, a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	}
	var wcs [4]WC
	release := b.Drive()
	for b.Progress(); b.loop.TryStep() == 0; time.Sleep(time.Millisecond) {
		write() // until a step of this goroutine receives one
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := b.cq.Wait(ctx, wcs[:]); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait() = %v without completions, want %v", err, context.DeadlineExceeded)
	}
	release()
	release() // harmless
	write()
	must(t, a.qp.Drain(t.Context()))
}

// No wake-up is lost while goroutines begin and end to drive a device.
func TestDriveStorm(t *testing.T) {
	a, b := newRig(t, rigConfig{})
	s := newStorm(t)
	for range 2 {
		s.run(func() bool {
			release := b.Drive()
			for range 10 {
				b.Progress()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Microsecond)
			defer cancel()
			_, _ = b.cq.Wait(ctx, make([]WC, 1))
			release()
			return true
		})
	}
	s.run(func() bool {
		err := a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		if err == nil {
			_, err = a.cq.Wait(t.Context(), make([]WC, 1))
		}
		if err != nil {
			t.Error(err)
		}
		return err == nil
	})
	s.end(func() {})
}

// A device can be closed while a goroutine drives it.
func TestCloseDriven(t *testing.T) {
	_, b := newRig(t, rigConfig{})
	release := b.Drive()
	defer release()
	done := make(chan error, 1)
	go func() {
		_, err := b.cq.Wait(t.Context(), make([]WC, 1))
		done <- err
	}()
	must(t, b.Close())
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("Wait() = %v, want %v", err, ErrClosed)
	}
}

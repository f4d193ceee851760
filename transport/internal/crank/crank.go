// Package crank is for tests of the transports: it drives devices that do not drive themselves.
package crank

import (
	"runtime"

	"github.com/gorxe/gorxe/roce"
)

// Turn turns the crank of a device with Manual progress until the function that it returns is called.
func Turn(d *roce.Device) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
				d.Progress()
				runtime.Gosched() // AllocsPerRun leaves one processor
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

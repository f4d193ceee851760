// Package drive drives devices with Manual progress in tests of the transports.
package drive

import (
	"runtime"

	"github.com/gorxe/gorxe/roce"
)

// Device drives d, a device with Manual progress, until the returned function is called.
func Device(d *roce.Device) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
				d.Progress()
				runtime.Gosched() // AllocsPerRun leaves only one processor
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

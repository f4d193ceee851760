package up

import (
	"bytes"
	"io"
	"time"
)

const (
	// maxWrites is the number of writes that wait for a reader. Further ones are left out.
	maxWrites = 1024
	// flushTime is how long output.close waits for a reader.
	flushTime = 2 * time.Second
)

// output passes writes on in a goroutine of its own, in order. A reader of stdout or stderr that
// hangs therefore stops neither the sessions, whose events are written, nor the end of gorxe.
type output struct {
	writes chan write
	stop   chan struct{} // closed by close
	done   chan struct{} // closed when everything is written
}

type write struct {
	to io.Writer
	b  []byte
}

func newOutput() *output {
	o := &output{writes: make(chan write, maxWrites), stop: make(chan struct{}),
		done: make(chan struct{})}
	go o.run()
	return o
}

// run passes writes on until close is called. There is nobody to tell about errors.
func (o *output) run() {
	defer close(o.done)
	for {
		select {
		case w := <-o.writes:
			_, _ = w.to.Write(w.b)
		case <-o.stop:
			for len(o.writes) > 0 {
				w := <-o.writes
				_, _ = w.to.Write(w.b)
			}
			return
		}
	}
}

// close waits until everything is written, at most flushTime.
func (o *output) close() {
	close(o.stop)
	select {
	case <-o.done:
	case <-time.After(flushTime):
	}
}

// to returns a writer that passes on to w.
func (o *output) to(w io.Writer) io.Writer { return outputWriter{o, w} }

type outputWriter struct {
	o *output
	w io.Writer
}

// Write implements io.Writer. It never blocks.
func (w outputWriter) Write(b []byte) (int, error) {
	select {
	case w.o.writes <- write{w.w, bytes.Clone(b)}:
	default:
	}
	return len(b), nil
}

package up

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
)

const (
	// maxWrites is the number of writes that wait for a reader. Further ones are left out, and
	// counted.
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
	to   *outputWriter
	b    []byte
	lost uint64 // number of writes before this one that were left out
}

// pass passes w on, after a line about the writes that were left out.
func (w write) pass() {
	if w.lost > 0 {
		text := fmt.Sprintf("%d lines were left out here, because their reader was too slow", w.lost)
		if w.to.json {
			_ = cli.JSON(w.to.w, line{Event: "lost", Message: text, Count: w.lost})
		} else {
			fmt.Fprintln(w.to.w, text)
		}
	}
	_, _ = w.to.w.Write(w.b)
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
			w.pass()
		case <-o.stop:
			for len(o.writes) > 0 {
				w := <-o.writes
				w.pass()
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

// to returns a writer that passes on to w, which takes lines of JSON or of text.
func (o *output) to(w io.Writer, json bool) io.Writer {
	return &outputWriter{o: o, w: w, json: json}
}

type outputWriter struct {
	o    *output
	w    io.Writer
	json bool
	lost atomic.Uint64 // number of writes that were left out since the last one that was not
}

// Write implements io.Writer. It never blocks.
func (w *outputWriter) Write(b []byte) (int, error) {
	lost := w.lost.Swap(0)
	select {
	case w.o.writes <- write{w, bytes.Clone(b), lost}:
	default:
		w.lost.Add(lost + 1)
	}
	return len(b), nil
}

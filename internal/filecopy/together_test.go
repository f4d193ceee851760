package filecopy_test

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/filecopytest"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// together runs copies at the same time. All of them must succeed.
func together(jobs ...*job) (list []*outcome) {
	done := make(chan *outcome)
	for _, j := range jobs {
		go func() { done <- j.run() }()
	}
	for range jobs {
		list = append(list, <-done)
	}
	return list
}

// Sessions that begin the same file at the same time store it one after the other.
func TestSameFileTogether(t *testing.T) {
	a := newJob(t)
	const files, size = 5, 4 << 20
	for i := range files {
		write(t, fmt.Sprintf("%s/d%d/large", a.from, i), size, uint64(i))
	}
	var begun atomic.Int32
	a.pipe.Tamper = func(b *filecopy.Block) bool {
		if b.Session == 2 && b.Seq == 0 { // the first one of a file waits for those of the others
			begun.Add(1)
			for end := time.Now().Add(time.Second); begun.Load() < 3 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
		}
		return true
	}
	b, c := *a, *a
	sent := int64(0)
	for _, o := range together(a, &b, &c) {
		if o.err != nil || o.kerr != nil || len(o.failed) > 0 {
			t.Errorf("source: %v, sink: %v, failed: %v", o.err, o.kerr, o.failed)
			continue
		}
		sent += o.Sent
	}
	if sent != files*size {
		t.Errorf("%d bytes were sent, want each file once", sent)
	}
	equal(t, a.from, a.to)
}

// The sink asks for a limited number of large files at a time, and so for all of them. Two sessions
// with many of them do not keep each other from going on.
func TestManyLargeFilesTogether(t *testing.T) {
	files := 200
	if testing.Short() {
		files = 50 // the race detector looks at each byte
	}
	a, b := newJob(t), newJob(t)
	b.to = a.to
	for _, j := range []*job{a, b} {
		for i := range files {
			name := fmt.Sprintf("%s/f%d", j.from, i)
			write(t, name, 1, uint64(i))
			must(t, os.Truncate(name, 4<<20)) // a hole
		}
	}
	for i := files; i > 0; i -= files / 4 {
		b.paths = append(b.paths, fmt.Sprintf("f%d", i-1))
	}
	b.paths = append(b.paths, "")
	for _, o := range together(a, b) {
		if o.err != nil || o.kerr != nil || len(o.failed) > 0 {
			t.Errorf("source: %v, sink: %v, failed: %v", o.err, o.kerr, o.failed)
		}
	}
	if list := temporaries(t, a.to); len(list) > 0 {
		t.Errorf("%q are left", list)
	}
	for i := range files {
		name := fmt.Sprintf("/f%d", i)
		sameFile(t, a.from+name, a.to+name)
	}
}

// A copy that ends leaves temporary files only of files of which something has arrived, although
// more were asked for, and unlocks all of them.
func TestLockedFilesEnd(t *testing.T) {
	files := 100
	if testing.Short() {
		files = 40
	}
	j := newJob(t)
	for i := range files {
		write(t, fmt.Sprintf("%s/f%d", j.from, i), 4<<20, uint64(i))
	}
	j.source.Limit = 40 << 20
	j.during = func(p *filecopytest.Pipe, _ *source.Source, k *sink.Sink) {
		eventually(func() bool { return k.Received() > 6<<20 })
		p.Close(errors.New("the cable was cut"))
	}
	if o := j.run(); o.err == nil || o.kerr == nil {
		t.Fatalf("source: %v, sink: %v", o.err, o.kerr)
	}
	// Two for each file that one of the 4 readers of the source was sending, or whose end has not
	// arrived; many more were asked for.
	if list := temporaries(t, j.to); len(list) == 0 || len(list) > 40 {
		t.Errorf("%d temporary files are left, want a few", len(list))
	}
	j.during, j.source.Limit = nil, 0
	if o := j.ok(); o.sum.Resumed < 1<<20 {
		t.Errorf("%d bytes were resumed", o.sum.Resumed)
	}
	equal(t, j.from, j.to)
}

// Sessions that create the same directories at the same time all store their files in them.
func TestSameDirectoriesTogether(t *testing.T) {
	a := newJob(t)
	for i := range 400 {
		write(t, fmt.Sprintf("%s/d%d/f", a.from, i), 10, uint64(i))
	}
	b, c := *a, *a
	for _, o := range together(a, &b, &c) {
		if o.err != nil || o.kerr != nil || len(o.failed) > 0 {
			t.Errorf("source: %v, sink: %v, failed: %v", o.err, o.kerr, o.failed)
		}
	}
	equal(t, a.from, a.to)
}

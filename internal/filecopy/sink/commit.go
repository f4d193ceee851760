package sink

import (
	"errors"
	"sync"

	"github.com/gorxe/gorxe/internal/filecopy/dirs"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

const (
	// committers is the number of batches that are committed at the same time.
	committers = 2
	// Bounds of the number of files of a batch, which are open, and the fraction of the process's
	// descriptors.
	minBatch   = 16
	maxBatch   = 1024
	batchParts = 16
	// Bounds of the number of files of all copies that are being committed, and the fraction of
	// the process's descriptors. A file needs three: its directory is open twice.
	commitParts = 12
	minCommit   = 16
	maxCommit   = 4096
)

// committing has a place for each file that is being committed, of all copies of the process.
var committing = sync.OnceValue(func() chan struct{} {
	return make(chan struct{}, dirs.Descriptors(commitParts, minCommit, maxCommit))
})

// committer writes complete files to disk and gives them their names, as many together as have
// arrived meanwhile.
type committer struct {
	s     *Sink
	queue chan *file
	max   int
	wg    sync.WaitGroup
}

func newCommitter(s *Sink) *committer {
	n := dirs.Descriptors(batchParts, minBatch, maxBatch)
	return &committer{s: s, queue: make(chan *file, n), max: n}
}

func (c *committer) start() {
	for range committers {
		c.wg.Go(func() {
			for f := range c.queue {
				c.commit(c.batch(f))
			}
		})
	}
}

// add adds a file. It waits while too many are open.
func (c *committer) add(f *file) {
	if !c.s.disk && f.part.Unnamed() { // on the device of the target directory
		f.publish(nil)
		return
	}
	committing() <- struct{}{}
	c.queue <- f
}

// close waits until all files are committed.
func (c *committer) close() {
	close(c.queue)
	c.wg.Wait()
}

// batch returns a file and those that wait behind it.
func (c *committer) batch(f *file) []*file {
	list := []*file{f}
	for len(list) < c.max {
		select {
		case f, ok := <-c.queue:
			if !ok {
				return list
			}
			list = append(list, f)
		default:
			return list
		}
	}
	return list
}

func (c *committer) commit(list []*file) {
	parts := make([]*part.Part, len(list))
	for i, f := range list {
		parts[i] = f.part
	}
	errs := part.SyncAll(parts)
	for i, f := range list {
		f.publish(errs[i])
		<-committing()
	}
}

// publish commits a file whose data was synced with the given result.
func (f *file) publish(synced error) {
	err := synced
	if err == nil {
		err = f.commit()
	}
	switch {
	case errors.Is(err, part.ErrExists):
		f.discard()
		f.skip(record.Exists)
	case err != nil:
		// After an error of the disk, nothing that was written can be trusted.
		f.giveUp(f.sink.full(f, reason(err)), synced == nil, whole)
	default:
		f.done(f.end.Size)
	}
}

// commit gives a file its name.
func (f *file) commit() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.part.Commit(f.sink.c.Overwrite == record.Never); err != nil {
		return err
	}
	f.part = nil
	f.sink.dirs.Release(f.dir.Dir)
	return nil
}

// discard removes the part of a file that is not needed.
func (f *file) discard() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keep, f.err = false, part.ErrExists // a late write closes the part
	f.closePart()
}

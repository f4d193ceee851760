package statusbyte

import (
	"errors"
	"os"
)

// Bounds of the data that waits for the disk. A power failure loses at most about this much of what
// has arrived, and what is in files that are not full and younger than syncInterval.
const (
	maxUnsynced      = 64 << 20 // bytes; a single file may be larger
	maxUnsyncedFiles = 64
	// diskWorkers is the number of concurrent fsyncs. File systems combine them.
	diskWorkers = 8
)

// disk syncs files in the background. A nil disk does nothing.
type disk struct {
	work  chan *flush
	queue []*flush // in the order of their submission; the first ones may be done
	bytes int64    // of those in queue
}

// flush is one or more files that are being synced, one after the other.
type flush struct {
	files []*os.File
	shut  bool  // close the files afterwards
	size  int64 // bytes of data
	err   error // valid after done is closed
	done  chan struct{}
}

// start begins to sync files. It waits first if too much is being synced.
func (k *disk) start(f *flush) *flush {
	if k.work == nil {
		k.work = make(chan *flush, maxUnsyncedFiles)
		for range diskWorkers {
			go worker(k.work)
		}
	}
	for len(k.queue) > 0 && (k.queue[0].over() || len(k.queue) >= maxUnsyncedFiles ||
		k.bytes+f.size > maxUnsynced) {
		<-k.queue[0].done
		k.bytes -= k.queue[0].size
		k.queue = k.queue[1:]
	}
	f.done = make(chan struct{})
	k.queue, k.bytes = append(k.queue, f), k.bytes+f.size
	k.work <- f // never waits: the channel holds all that queue may have
	return f
}

func worker(work <-chan *flush) {
	for f := range work {
		for _, file := range f.files {
			err := file.Sync()
			if errors.Is(err, os.ErrClosed) {
				err = nil // its directory was removed; the data was copied to another file
			}
			if f.shut {
				err = errors.Join(err, file.Close())
			}
			f.err = errors.Join(f.err, err)
		}
		close(f.done)
	}
}

// over reports whether the files are synced. A nil flush is over.
func (f *flush) over() bool {
	if f == nil {
		return true
	}
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// wait waits until the files are synced.
func (f *flush) wait() {
	if f != nil {
		<-f.done
	}
}

// stop ends the workers.
func (k *disk) stop() {
	if k != nil && k.work != nil {
		close(k.work)
	}
}

package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy/part"
)

const (
	// Bounds of the number of files with a journal that are asked for and have not arrived, and the
	// fraction of the process's descriptors: each of them is open. The source sends few at a time,
	// and other sessions wait for those that are locked.
	lockedParts = 64
	minLocked   = 8
	maxLocked   = 64
	// busyTime is how long a file waits for another session that writes it. The session of a peer
	// that has died ends within this time.
	busyTime = 40 * time.Second
	busyPoll = 200 * time.Millisecond
)

// lock locks a file with a journal, then asks for it. If two sessions begin the same file at the
// same time, one of them waits before its source sends anything. With too many locked files, the
// file waits until next.
func (s *Sink) lock(f *file) {
	s.mu.Lock()
	if s.locked == s.mostLocked {
		s.unlocked = append(s.unlocked, f)
		s.mu.Unlock()
		return
	}
	s.locked++
	s.mu.Unlock()
	s.locking(f)
}

// locking counts a file in Sink.locked, then locks it and asks for it.
func (s *Sink) locking(f *file) {
	f.mu.Lock()
	f.counted = true
	f.mu.Unlock()
	s.prepare(f)
}

// uncount takes a file out of Sink.locked: it has arrived, or has failed.
func (f *file) uncount() {
	f.mu.Lock()
	counted := f.counted
	f.counted = false
	f.mu.Unlock()
	if counted {
		f.sink.next()
	}
}

// next locks a file that waits for that, in place of one that was uncounted.
func (s *Sink) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unlocked) == 0 || s.ctx.Err() != nil {
		s.locked--
		return
	}
	f := s.unlocked[0]
	s.unlocked = s.unlocked[1:]
	s.busy++
	s.waits.Go(func() {
		defer s.end()
		s.locking(f)
	})
}

// prepare asks for a file, when no other session writes it.
func (s *Sink) prepare(f *file) {
	err := s.explain(f, f.prepare())
	if !errors.Is(err, part.ErrBusy) {
		s.prepared(f, err)
		return
	}
	s.begin()
	s.waits.Go(func() {
		defer s.end()
		s.prepared(f, s.await(f))
	})
}

// prepared asks for a file that is prepared, unless another session has stored the same before this
// one could lock it.
func (s *Sink) prepared(f *file, err error) {
	if err == nil && f.resumable() {
		if why, e := s.compare(f); e == nil && why != 0 {
			f.discard()
			f.skip(why)
			return
		}
	}
	s.ask(f, err)
}

// explain replaces part.ErrBusy if the source itself sends two files of the same name to a
// directory.
func (s *Sink) explain(f *file, err error) error {
	if !errors.Is(err, part.ErrBusy) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.files {
		if other != f && other.dir == f.dir && other.Name == f.Name {
			return fmt.Errorf("two sources have the name %q", f.Name)
		}
	}
	return err
}

// await waits until another session has ended that writes the same file. Often it is the session of
// a sender that was killed and now resumes.
func (s *Sink) await(f *file) (err error) {
	for end := time.Now().Add(busyTime); ; {
		select {
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-time.After(busyPoll):
		}
		if err = f.prepare(); !errors.Is(err, part.ErrBusy) || time.Now().After(end) {
			return err
		}
	}
}

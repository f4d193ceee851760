package sink

import (
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// recordsOf handles the records of a block, in order. Its error ends the transfer.
func (s *Sink) recordsOf(b *blocks) error {
	s.begin()
	defer s.end()
	t := batch{Sink: s, b: b}
	for rest := b.Data[:b.Len]; len(rest) > 0; {
		rec, next, err := record.Next(rest)
		if err != nil {
			return err
		}
		rest = next
		switch r := rec.(type) {
		case *record.Entry:
			err = s.entry(r, &t)
		case *record.Data:
			err = s.data(r, &t)
		case *record.End:
			err = s.endOf(r)
		case *record.Fail:
			err = s.sourceFailed(r)
		case *record.Leave:
			err = s.leave(r)
		case *record.Tree:
			err = s.treeEnd()
		}
		if err != nil {
			return err
		}
	}
	t.flush()
	return nil
}

// maxTogether is the number of small files or entries that a worker handles in one task.
const maxTogether = 16

// batch collects tasks of a block of records that are given to a worker together: tasks of small
// files take less time than waking a goroutine.
type batch struct {
	*Sink
	b      *blocks
	checks []*file
	stores []store
}

// store is a small file whose contents have arrived.
type store struct {
	f *file
	d *record.Data
}

func (t *batch) check(f *file) {
	if t.checks = append(t.checks, f); len(t.checks) == maxTogether {
		t.flush()
	}
}

func (t *batch) store(f *file, d *record.Data) {
	if t.stores = append(t.stores, store{f, d}); len(t.stores) == maxTogether {
		t.flush()
	}
}

// flush gives what was collected to a worker.
func (t *batch) flush() {
	s, b, checks, stores := t.Sink, t.b, t.checks, t.stores
	if len(checks)+len(stores) == 0 {
		return
	}
	t.checks, t.stores = nil, nil
	b.uses.Add(1)
	s.do(func() {
		defer b.release()
		for _, f := range checks {
			s.check(f)
		}
		for i := range stores {
			stores[i].f.store(stores[i].d)
		}
	})
}

// entry begins an entry.
func (s *Sink) entry(e *record.Entry, t *batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[e.Parent]
	switch {
	case e.Number <= s.last || s.tree:
		return fmt.Errorf("%w: entry %d after entry %d", record.ErrFormat, e.Number, s.last)
	case n == nil || n.left:
		return fmt.Errorf("%w: an entry of directory %d, which has ended", record.ErrFormat,
			e.Parent)
	case len(s.files) >= maxPending || len(s.nodes) >= maxDirs || s.answers.tooMany():
		return fmt.Errorf("%w: more than %d entries without an answer", record.ErrFormat,
			maxPending)
	}
	if s.entries++; s.c.MaxFiles > 0 && s.entries > s.c.MaxFiles {
		return fmt.Errorf("%w: the receiver accepts at most %d files and directories at a time",
			ErrLimit, s.c.MaxFiles)
	}
	if s.c.Rename != "" && e.Parent == 0 {
		if e.Kind == record.Dir || s.last > 0 {
			return fmt.Errorf("%w: more than one file for the name %q", record.ErrFormat,
				s.c.Rename)
		}
		e.Name = s.c.Rename
	}
	s.last = e.Number
	if err := record.CheckName(e.Name); err != nil {
		return err
	}
	n.pending++
	s.note(n, e.Name)
	if e.Kind == record.Dir {
		if n.depth == record.MaxDepth {
			return fmt.Errorf("%w: more than %d directories deep", record.ErrFormat, n.depth)
		}
		d := &node{Dir: n.Child(e.Name), Entry: *e, parent: n, depth: n.depth + 1,
			ready: make(chan struct{})}
		s.nodes[e.Number] = d
		s.later(func() { s.enter(d) })
		return nil
	}
	f := &file{Entry: *e, sink: s, dir: n}
	s.files[e.Number] = f
	s.mu.Unlock()
	t.check(f)
	s.mu.Lock()
	return nil
}

// later is do for callers that hold mu.
func (s *Sink) later(task func()) {
	s.mu.Unlock()
	s.do(task)
	s.mu.Lock()
}

// file returns the file with a number that the source sends, nil if it was given up here.
func (s *Sink) file(number uint64) (*file, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[number]
	if f == nil && number > s.last || f != nil && !f.wanted() {
		return nil, fmt.Errorf("%w: the contents of entry %d, which was not asked for",
			record.ErrFormat, number)
	}
	return f, nil
}

// data stores a small file.
func (s *Sink) data(d *record.Data, t *batch) error {
	f, err := s.file(d.Number)
	if f == nil {
		return err
	}
	if err := f.begin(); err != nil {
		return err
	}
	t.store(f, d)
	return nil
}

// endOf ends the contents of a large file.
func (s *Sink) endOf(e *record.End) error {
	f, err := s.file(e.Number)
	if f == nil {
		return err
	}
	if f.Kind == record.File && e.Size != f.Size {
		return fmt.Errorf("%w: the size of entry %d is %d, and was %d", record.ErrFormat, e.Number,
			e.Size, f.Size)
	}
	f.hold()
	s.do(func() { f.finish(e) })
	return nil
}

// sourceFailed gives up a file that the source cannot send.
func (s *Sink) sourceFailed(r *record.Fail) error {
	if r.Number == 0 { // the text has the path
		s.mu.Lock()
		s.sum.Failed++
		s.mu.Unlock()
		s.report("sender", errors.New(r.Text))
		return nil
	}
	f, err := s.file(r.Number)
	if f != nil {
		s.do(func() {
			f.fail(errors.New("the sender could not read it: "+r.Text), !r.Changed)
		})
	}
	return err
}

// leave ends the entries of a directory.
func (s *Sink) leave(l *record.Leave) error {
	s.mu.Lock()
	n := s.nodes[l.Number]
	if n == nil || n.left {
		s.mu.Unlock()
		return fmt.Errorf("%w: the end of directory %d", record.ErrFormat, l.Number)
	}
	n.left, n.complete = true, l.Complete
	done := n.pending == 0
	s.mu.Unlock()
	if done {
		s.do(func() { s.leaveDir(n) })
	}
	return nil
}

// treeEnd ends the entries.
func (s *Sink) treeEnd() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number, n := range s.nodes {
		if number != 0 && !n.left {
			return fmt.Errorf("%w: directory %d has no end", record.ErrFormat, number)
		}
	}
	if s.tree {
		return fmt.Errorf("%w: two ends", record.ErrFormat)
	}
	s.tree = true
	return nil
}

// reserved reports whether a name is used for temporary files.
func reserved(name string) bool {
	_, ok := part.Temporary(name)
	return ok
}

// stored counts an entry that was stored, and answers.
func (s *Sink) stored(e *record.Entry, bytes int64) {
	s.mu.Lock()
	s.sum.Stored++
	s.sum.Bytes += uint64(bytes)
	s.mu.Unlock()
	s.answers.add(&record.Answer{Number: e.Number, Verdict: record.Done})
}

// skipped counts an entry that need not be stored, and answers.
func (s *Sink) skipped(e *record.Entry, dir *node, why record.Reason) {
	s.mu.Lock()
	s.sum.Skipped++
	s.mu.Unlock()
	if why == record.DryRun {
		s.call(s.c.Listed, dir.Join(e.Name))
	}
	s.answers.add(&record.Answer{Number: e.Number, Verdict: record.Skipped, Reason: why})
}

// failed counts and reports an entry that cannot be stored, and answers.
func (s *Sink) failed(e *record.Entry, dir *node, err error) {
	s.mu.Lock()
	s.sum.Failed++
	s.mu.Unlock()
	s.report(dir.Join(e.Name), err)
	s.answers.add(&record.Answer{Number: e.Number, Verdict: record.Failed, Text: err.Error()})
}

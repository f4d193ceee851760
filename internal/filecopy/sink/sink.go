package sink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/dirs"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/pattern"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// Bounds of what a source can make the sink remember.
const (
	workers = 8
	// maxPending is the number of entries that the sink has not finished. A source announces fewer.
	maxPending = 1 << 16
	// maxDirs is the number of directories that the source has not left, or that wait for files.
	maxDirs = 1 << 16
	// Bounds of the number of large files that are not finished, and the fraction of the process's
	// descriptors: each of them is open.
	sendingParts = 2
	minSending   = 256
	maxSending   = 8192
)

// ErrLimit means that the source wants to send more than the sink accepts.
var ErrLimit = errors.New("limit reached")

// ErrChecksum means that data has changed between the source's memory and the sink's.
var ErrChecksum = errors.New("the checksum is wrong: the data was damaged on its way")

// Config says how files are stored.
type Config struct {
	// Dir is the target directory; nil in a dry run if it does not exist.
	Dir *os.Root
	// Rename is the name of the single file; "" keeps the names of the source.
	Rename string
	// Top, if set, are attributes that Dir gets at the end: it was created for the copy.
	Top       *record.Attributes
	Overwrite record.Overwrite
	Delete    bool
	DryRun    bool
	Rules     *pattern.List // what they exclude is not deleted
	Direct    bool          // write large files past the page cache
	MaxFiles  int64         // entries of all kinds; 0: no limit
	MaxBytes  int64         // of all files; 0: no limit
	// Failed, if set, is called for each path that was not stored, Deleted for each name that was
	// deleted, except below deleted directories, and Listed for each path that a dry run would
	// store. The calls are not concurrent.
	Failed  func(path string, err error)
	Deleted func(path string)
	Listed  func(path string)
}

// Sink stores files.
type Sink struct {
	c       Config
	conn    filecopy.Conn
	dirs    *dirs.Cache
	answers *answers
	tasks   chan func()
	commits *committer
	checks  sync.WaitGroup  // checkpoints in progress
	waits   sync.WaitGroup  // files that wait for other sessions
	ctx     context.Context // of Run
	device  uint64          // of the target directory
	whole   bool            // its file system can be synced as a whole
	disk    bool            // it has a disk, to which files must be synced

	received atomic.Int64 // bytes of files

	events sync.Mutex // held during calls of the functions of c

	mu         sync.Mutex
	last       uint64           // number of the last entry
	nodes      map[uint64]*node // directories
	files      map[uint64]*file // files that are not finished
	sessions   map[uint32]*file // of files with blocks of their own
	sending    int              // files that have had a session and are not finished
	most       int              // the largest number of them
	locked     int              // files with a journal that are asked for and have not arrived
	mostLocked int              // the largest number of them
	unlocked   []*file          // files with a journal that wait to be locked
	records    uint32           // the session of records
	begun      bool             // records is set
	order      order            // of the blocks of records
	tree       bool             // all entries were announced
	busy       int              // tasks and records in progress
	sum        record.Summary
	entries    int64
	bytes      int64 // of files that were asked for
	seen       int   // names that nodes remember
	finished   chan struct{}
}

// blocks counts the uses of a block of records. The last one gives it back.
type blocks struct {
	*filecopy.Block

	of   filecopy.Conn
	uses atomic.Int32
}

func (b *blocks) release() {
	if b.uses.Add(-1) == 0 {
		b.of.PutFree(b.Block)
	}
}

// New returns a Sink for a connection after the handshake.
func New(conn filecopy.Conn, c Config) *Sink {
	s := &Sink{c: c, conn: conn, dirs: dirs.NewCache(), answers: newAnswers(),
		tasks: make(chan func(), 2*workers), nodes: map[uint64]*node{},
		files: map[uint64]*file{}, sessions: map[uint32]*file{},
		most:       dirs.Descriptors(sendingParts, minSending, maxSending),
		mostLocked: dirs.Descriptors(lockedParts, minLocked, maxLocked),
		finished:   make(chan struct{})}
	s.nodes[0] = newTop(c.Dir)
	s.commits = newCommitter(s)
	return s
}

// Entries returns the number of entries that are finished.
func (s *Sink) Entries() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.sum.Stored + s.sum.Skipped + s.sum.Failed)
}

// Received returns the number of bytes of files that have arrived so far.
func (s *Sink) Received() int64 { return s.received.Load() }

// Run stores what the source sends, and returns the summary that the source gets as well.
func (s *Sink) Run(ctx context.Context) (record.Summary, error) {
	if err := s.findDevice(); err != nil {
		return record.Summary{}, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s.ctx = ctx
	var running, sending sync.WaitGroup
	for range workers {
		running.Go(s.work)
	}
	s.commits.start()
	sending.Go(func() {
		if err := s.answers.run(ctx, s.conn); err != nil {
			stop(err)
		}
	})
	receive, end := context.WithCancel(ctx)
	received := make(chan error, 1)
	go func() { received <- s.receive(receive) }()
	var err error
	select {
	case <-s.finished:
		end()
		<-received
	case err = <-received:
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		stop(err)
	}
	end()
	// receive has ended, so nobody else adds tasks.
	close(s.tasks)
	running.Wait()
	s.checks.Wait()
	s.waits.Wait() // tasks and checkpoints may have added some
	s.commits.close()
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = s.syncTarget()
	}
	s.answers.close()
	sending.Wait()
	s.dirs.Close()
	if err == nil {
		err = context.Cause(ctx)
	}
	sum := s.cleanUp()
	if err != nil {
		return sum, err
	}
	return sum, s.conn.SendMessage(ctx, sum.Append(nil))
}

// work does tasks.
func (s *Sink) work() {
	for task := range s.tasks {
		task()
	}
}

// do gives a task to the workers. The caller is the goroutine of receive.
func (s *Sink) do(task func()) {
	s.begin()
	s.tasks <- func() {
		defer s.end()
		task()
	}
}

// begin counts work that keeps Run from ending, until end.
func (s *Sink) begin() {
	s.mu.Lock()
	s.busy++
	s.mu.Unlock()
}

func (s *Sink) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended()
}

// ended is end for callers that hold mu.
func (s *Sink) ended() {
	if s.busy--; s.busy == 0 && s.tree && len(s.files) == 0 {
		close(s.finished)
		s.tree = false // closes it once
	}
}

// receive handles events of the connection until ctx ends or the source breaks the protocol.
func (s *Sink) receive(ctx context.Context) error {
	for {
		r, err := s.conn.GetReady(ctx)
		if err != nil {
			return err
		}
		if err := s.event(&r); err != nil {
			return err
		}
	}
}

func (s *Sink) event(r *filecopy.Ready) error {
	switch r.Kind {
	case filecopy.Opened:
		return s.opened(r)
	case filecopy.Data:
		if r.Block.Len < 0 || r.Block.Len > len(r.Block.Data) || r.Block.Offset < 0 {
			return fmt.Errorf("%w: a block of %d bytes at offset %d", record.ErrFormat, r.Block.Len,
				r.Block.Offset)
		}
		if s.begun && r.Session == s.records {
			return s.recordBlock(r.Block)
		}
		return s.fileBlock(r.Session, r.Block)
	case filecopy.Ended, filecopy.Aborted:
		s.mu.Lock()
		f := s.sessions[r.Session]
		delete(s.sessions, r.Session)
		s.mu.Unlock()
		if f != nil && r.Kind == filecopy.Ended {
			f.hold()
			s.do(f.leave)
		} // otherwise a record tells why
		if r.Kind == filecopy.Aborted && s.begun && r.Session == s.records {
			return errors.New("the sender has stopped")
		}
	}
	return nil
}

// opened begins a session.
func (s *Sink) opened(r *filecopy.Ready) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Param == 0 {
		if s.begun {
			return fmt.Errorf("%w: two sessions of records", record.ErrFormat)
		}
		s.begun, s.records = true, r.Session
		return nil
	}
	f := s.files[r.Param]
	if f == nil && r.Param > s.last || f != nil && !f.wanted() {
		return fmt.Errorf("%w: a session for entry %d, which was not asked for", record.ErrFormat,
			r.Param)
	}
	s.sessions[r.Session] = f
	if f == nil || !f.begun(r.Session) { // it has failed while the source began to send it
		s.sessions[r.Session] = nil
		s.conn.Refuse(r.Session, "the file is not wanted any more")
		return nil
	}
	if s.sending++; s.sending > s.most {
		return fmt.Errorf("%w: more than %d files at a time", record.ErrFormat, s.most)
	}
	return nil
}

// recordBlock handles a block of records, and those that waited for it.
func (s *Sink) recordBlock(b *filecopy.Block) error {
	if extent.Sum(b.Data[:b.Len]) != b.CRC {
		return fmt.Errorf("records: %w", ErrChecksum)
	}
	if err := s.order.add(b); err != nil {
		return err
	}
	for b := s.order.take(); b != nil; b = s.order.take() {
		shared := &blocks{Block: b, of: s.conn}
		shared.uses.Store(1)
		err := s.recordsOf(shared)
		shared.release()
		if err != nil {
			return err
		}
	}
	return nil
}

// fileBlock writes a block of a file.
func (s *Sink) fileBlock(session uint32, b *filecopy.Block) error {
	s.mu.Lock()
	f, ok := s.sessions[session]
	s.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: a block of session %d", record.ErrFormat, session)
	}
	if f == nil {
		s.conn.PutFree(b)
		return nil
	}
	f.hold()
	s.do(func() {
		defer s.conn.PutFree(b)
		f.write(b)
	})
	return nil
}

// report reports a path that was not stored.
func (s *Sink) report(path string, err error) {
	s.events.Lock()
	defer s.events.Unlock()
	if s.c.Failed != nil {
		s.c.Failed(path, err)
	}
}

// call calls one of the functions of c about a path.
func (s *Sink) call(f func(string), path string) {
	if f == nil {
		return
	}
	s.events.Lock()
	defer s.events.Unlock()
	f(path)
}

// cleanUp leaves files that were not finished for a later run, and returns the summary.
func (s *Sink) cleanUp() record.Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order.drop(s.conn)
	for _, f := range s.files {
		f.abandon()
	}
	return s.sum
}

package source

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/dirs"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/pattern"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// Numbers of goroutines and entries.
const (
	smallReaders = 4
	largeReaders = 4
	// smallTogether is the number of small files that a reader takes from the queue at a time.
	smallTogether = 16
	// readAhead is the number of blocks of one file that are read at the same time.
	readAhead = 8
	// window is the number of entries that may be announced before the sink has finished them.
	window = 16384
	// smallParts and maxSmall bound the size of files that share a block: a fraction of the block,
	// and bytes.
	smallParts = 2
	maxSmall   = 128 << 10
)

// Config says what a Source sends.
type Config struct {
	Paths  []*Path
	Rules  *pattern.List
	Direct bool  // read large files past the page cache
	Limit  int64 // bytes per second; 0: no limit
	// Failed, if set, is called for each path that was not transferred. Deleted, if set, is called
	// for each name that the sink has deleted, with its path below the target, Listed for each
	// entry that a dry run would transfer, and Ignored for each special file. The calls are not
	// concurrent.
	Failed  func(path string, err error)
	Deleted func(path string)
	Listed  func(path string)
	Ignored func(path, kind string)
}

// Progress is how far a transfer is.
type Progress struct {
	Entries int64 // done, skipped or failed
	Bytes   int64 // of files that were sent or need not be sent
	Sent    int64 // bytes of files that were sent
	Current string
}

// Result is what a Source has done.
type Result struct {
	Sink    record.Summary
	Failed  int64 // paths that were not transferred
	Ignored int64 // special files
	Entries int64 // that were announced
	Bytes   int64 // of the files that were announced
	Sent    int64 // bytes of files that were sent
	// Stored is the number of entries of which the sink has said that they are stored, and
	// StoredBytes the size of the files among them. Without the sink's summary, it says how far the
	// transfer has come.
	Stored, StoredBytes int64
}

// ErrFailed means that some paths were not transferred.
var ErrFailed = errors.New("not transferred")

// Source sends files. Its methods may be called while Run runs.
type Source struct {
	c        Config
	conn     filecopy.Conn
	blocks   int // size of a block
	maxSmall int64
	pack     packer
	limit    *limiter
	dirs     *dirs.Cache
	slots    chan struct{} // one for each entry of the window

	entries, bytes, sent atomic.Int64
	current              atomic.Pointer[string]

	events sync.Mutex // held during calls of the functions of c

	mu          sync.Mutex
	smalls      sync.Cond // small or ended changed
	larges      sync.Cond // large or ended changed
	pending     map[uint64]*item
	number      uint64 // of the last entry
	small       []*item
	large       []*item
	walked      bool
	failed      int64
	ignored     int64
	total       int64 // bytes
	stored      int64
	storedBytes int64 // of the files that are stored
	ended       bool
}

// item is an entry that was announced and that the sink has not finished.
type item struct {
	record.Entry

	dir    *dirs.Dir // that contains it; nil for a stream
	path   *Path
	name   string // in dir
	have   []extent.Extent
	failed bool // reported
	slot   bool // holds a slot of the window
	wanted bool // the sink has asked for it
	stop   atomic.Bool
	stamp  stamp
}

// text returns the path for messages.
func (it *item) text() string { return entryText(it.path, it.dir, it.name) }

func entryText(p *Path, d *dirs.Dir, name string) string {
	switch {
	case p.Stream != nil || d == nil:
		return p.Text
	case p.Name == "":
		if name == "" {
			return p.Text
		}
		return p.Text + "/" + d.Join(name)
	}
	// The top directory contains p.Name.
	below := d.Join(name)
	return p.Text + below[len(p.Name):]
}

// New returns a Source for a connection after the handshake.
func New(conn filecopy.Conn, blockSize int, c Config) *Source {
	s := &Source{c: c, conn: conn, blocks: blockSize, limit: newLimiter(c.Limit),
		dirs: dirs.NewCache(), slots: make(chan struct{}, window), pending: map[uint64]*item{}}
	s.maxSmall = int64(min(blockSize/smallParts, maxSmall, record.MaxData))
	s.smalls.L, s.larges.L = &s.mu, &s.mu
	s.pack.conn = conn
	return s
}

// Progress returns how far the transfer is.
func (s *Source) Progress() Progress {
	p := Progress{Entries: s.entries.Load(), Bytes: s.bytes.Load(), Sent: s.sent.Load()}
	if c := s.current.Load(); c != nil {
		p.Current = *c
	}
	return p
}

// Run sends everything and waits for the sink's summary. Its error is ErrFailed if only some paths
// were not transferred.
func (s *Source) Run(ctx context.Context) (*Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	session, err := s.conn.Open(ctx, 0)
	if err != nil {
		return nil, err
	}
	s.pack.session = session
	var wg sync.WaitGroup
	run := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
	}
	stop := context.AfterFunc(ctx, s.end)
	defer stop()
	for range smallReaders {
		run(s.readSmall)
	}
	for range largeReaders {
		run(s.readLarge)
	}
	run(s.walkAll)
	summary, err := s.answers(ctx)
	// A reader may still send a file that the sink has given up.
	cancel(err)
	s.end()
	wg.Wait()
	s.pack.close()
	s.dirs.Close()
	r := s.result(summary)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // the first error, rather than one that followed from it
	}
	if err != nil {
		session.Abort(err.Error())
		return r, err
	}
	if err := session.End(); err != nil {
		return r, err
	}
	if r.Failed > 0 {
		return r, ErrFailed
	}
	return r, nil
}

func (s *Source) result(summary record.Summary) *Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Result{Sink: summary, Failed: s.failed, Ignored: s.ignored, Entries: int64(s.number),
		Bytes: s.total, Sent: s.sent.Load(), Stored: s.stored, StoredBytes: s.storedBytes}
}

// end ends the readers.
func (s *Source) end() {
	s.mu.Lock()
	s.ended = true
	s.smalls.Broadcast()
	s.larges.Broadcast()
	s.mu.Unlock()
}

// nextSmall waits for small files that the sink wants, and moves some to list. It returns their
// number, 0 at the end.
func (s *Source) nextSmall(list []*item) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.small) == 0 && !s.ended {
		s.smalls.Wait()
	}
	if s.ended {
		return 0
	}
	n := copy(list, s.small)
	s.small = s.small[n:]
	return n
}

// nextLarge waits for the next item of the other ones. It returns nil at the end.
func (s *Source) nextLarge() *item {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.large) == 0 && !s.ended {
		s.larges.Wait()
	}
	if s.ended {
		return nil
	}
	it := s.large[0]
	s.large = s.large[1:]
	return it
}

// report reports that a path was not transferred.
func (s *Source) report(path string, err error) {
	s.mu.Lock()
	s.failed++
	s.mu.Unlock()
	s.events.Lock()
	defer s.events.Unlock()
	if s.c.Failed != nil {
		s.c.Failed(path, err)
	}
}

// special describes the mode of a special file.
func special(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return "FIFO"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "device"
	}
	return "special file"
}

// ignore reports a special file, or a temporary one.
func (s *Source) ignore(path, kind string) {
	s.mu.Lock()
	s.ignored++
	s.mu.Unlock()
	s.events.Lock()
	defer s.events.Unlock()
	if s.c.Ignored != nil {
		s.c.Ignored(path, kind)
	}
}

// fail reports that an item cannot be read, and tells the sink.
func (s *Source) fail(ctx context.Context, it *item, changed bool, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	first := !it.failed
	it.failed = true
	s.mu.Unlock()
	if first {
		s.report(it.text(), err)
	}
	return s.pack.add(ctx, failure(it.Number, changed, err))
}

// announce sends the entry of an item.
func (s *Source) announce(ctx context.Context, it *item) error {
	select {
	case s.slots <- struct{}{}:
	default:
		s.pack.leave() // what was announced must reach the sink, so that slots become free
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
		}
		s.pack.enter()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	s.mu.Lock()
	s.number++
	it.Number, it.slot = s.number, true
	s.pending[it.Number] = it
	if it.Kind == record.File {
		s.total += it.Size
	}
	s.mu.Unlock()
	return s.pack.add(ctx,
		record.AppendEntry(make([]byte, 0, record.EntryLen(&it.Entry)), &it.Entry))
}

package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/safefile"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

// tailPause is the interval at which a directory without new files is checked.
const tailPause = 20 * time.Millisecond

// ErrGaps means that a directory lacked packets of its stream.
var ErrGaps = errors.New("packets are missing from the stream: the receiver or its sender lost them")

// Tail writes the stream in the directory dir of a device to out until the stream ends. It removes
// the files that it has written if remove is set. Missing packets and a missing directory are
// reported on diag, missing packets also by ErrGaps at the end. The end of ctx is not an error.
func Tail(ctx context.Context, dir string, remove bool, out, diag io.Writer) error {
	err := tail(ctx, dir, remove, out, diag)
	if err != nil && !errors.Is(err, ErrGaps) {
		err = fmt.Errorf("follow the directory of a device: %w", err)
	}
	return err
}

func tail(ctx context.Context, dir string, remove bool, out, diag io.Writer) error {
	t := follower{dir: dir, remove: remove, out: out, diag: diag, number: numbers{next: -1}}
	for {
		more, end, err := t.poll()
		switch {
		case err != nil:
			return err
		case end && t.gaps > 0:
			return fmt.Errorf("%w (%s)", ErrGaps, cli.Count(t.gaps, "gap"))
		case end:
			return nil
		case more:
			continue
		}
		if err := sleepUntil(ctx, time.Now().Add(tailPause)); err != nil {
			return nil
		}
	}
}

// follower is the state of Tail.
type follower struct {
	dir       string
	remove    bool
	out, diag io.Writer
	last      string // the last file that was written
	number    numbers
	gaps      int
	missing   bool // a message says that dir is missing
}

// poll writes the files that are there. It reports whether there were any, and whether the stream
// has ended. The directory is opened each time, because it may be created again.
func (t *follower) poll() (more, end bool, err error) {
	info, err := os.Stat(t.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if !t.missing {
			t.missing = true
			fmt.Fprintf(t.diag, "%s does not exist yet; waiting for it.\n", t.dir)
		}
		return false, false, nil
	case err != nil:
		return false, false, err
	case !info.IsDir():
		return false, false, fmt.Errorf("%s is not a directory: "+
			"name a directory below that of 'statusbyte recv --dir'", t.dir)
	}
	root, err := os.OpenRoot(t.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	// When the end mark exists, all files exist. So check it before listing them.
	_, err = root.Lstat(statusbyte.EndMark)
	end = err == nil
	names, err := filesAfter(root, t.last)
	if err != nil {
		return false, false, err
	}
	for _, name := range names {
		if err := t.write(root, name); err != nil {
			return false, false, err
		}
	}
	return len(names) > 0, end && len(names) == 0, nil
}

// write writes a file to out. It does not follow links, because others may write to the directory.
func (t *follower) write(root *os.Root, name string) error {
	if t.number.skipped(name) {
		t.gaps++
		fmt.Fprintf(t.diag, "Packets are missing before %s.\n", filepath.Join(t.dir, name))
	}
	f, err := safefile.Open(root, name, os.O_RDONLY)
	if err != nil {
		return err
	}
	_, err = io.Copy(t.out, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	// Numbers may start at 0 again in a directory that was emptied, so there last stays empty.
	if t.remove {
		return safefile.Remove(root, name)
	}
	t.last = name
	return nil
}

// numbers follows the numbers of the files of a directory.
type numbers struct{ next int64 } // -1: unknown

// skipped reports whether numbers are missing before this file. A number that is lower than
// expected starts a new sequence.
func (n *numbers) skipped(name string) bool {
	v, err := strconv.ParseInt(strings.TrimSuffix(name, statusbyte.StoreSuffix), 10, 64)
	if err != nil {
		return false // not a file of the store
	}
	skipped := n.next >= 0 && v > n.next
	n.next = v + 1
	return skipped
}

// filesAfter lists the files of a store whose names follow last, in order.
func filesAfter(root *os.Root, last string) ([]string, error) {
	f, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	all, err := f.Readdirnames(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	slices.Sort(all)
	return slices.DeleteFunc(all, func(name string) bool {
		return !strings.HasSuffix(name, statusbyte.StoreSuffix) || name <= last
	}), nil
}

package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

// tailPause is the interval at which a directory without new files is checked.
const tailPause = 20 * time.Millisecond

// ErrGaps means that a directory lacked packets of its stream.
var ErrGaps = errors.New("packets are missing from the stream: the receiver or its sender lost them")

// Tail writes the stream in the directory dir of a device to out until the stream ends. It removes
// the files that it has written if remove is set. Missing packets are reported on diag and, at the
// end, by ErrGaps. The end of ctx is not an error.
func Tail(ctx context.Context, dir string, remove bool, out, diag io.Writer) error {
	err := tail(ctx, dir, remove, out, diag)
	if err != nil && !errors.Is(err, ErrGaps) {
		err = fmt.Errorf("read the directory of a device: %w", err)
	}
	return err
}

func tail(ctx context.Context, dir string, remove bool, out, diag io.Writer) error {
	last, gaps := "", 0
	number := numbers{next: -1}
	for {
		// When the end mark exists, all files exist. So check it before listing them.
		_, err := os.Stat(filepath.Join(dir, statusbyte.EndMark))
		end := err == nil
		names, err := filesAfter(dir, last)
		if err != nil {
			return err
		}
		for _, name := range names {
			if number.skipped(name) {
				gaps++
				fmt.Fprintf(diag, "Packets are missing before %s.\n", filepath.Join(dir, name))
			}
			if err := copyFile(filepath.Join(dir, name), remove, out); err != nil {
				return err
			}
			// Numbers may start at 0 again in a directory that was emptied, so there last stays
			// empty.
			if !remove {
				last = name
			}
		}
		if end && len(names) == 0 {
			if gaps > 0 {
				return fmt.Errorf("%w (%s)", ErrGaps, cli.Count(gaps, "gap"))
			}
			return nil
		}
		if len(names) > 0 {
			continue
		}
		if err := sleepUntil(ctx, time.Now().Add(tailPause)); err != nil {
			return nil
		}
	}
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

// filesAfter lists the files of a store whose names follow last, in order. A directory that does
// not exist yet has none.
func filesAfter(dir, last string) ([]string, error) {
	list, err := os.ReadDir(dir) // sorted
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range list {
		if strings.HasSuffix(e.Name(), statusbyte.StoreSuffix) && e.Name() > last {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func copyFile(name string, remove bool, out io.Writer) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	err = errors.Join(err, f.Close())
	if err == nil && remove {
		err = os.Remove(name)
	}
	return err
}

package statusbyte

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

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

// tailPause is how long tail sleeps when there is nothing new.
const tailPause = 20 * time.Millisecond

func tailCommand() *cobra.Command {
	var remove bool
	cmd := &cobra.Command{
		Use:   "tail DIR",
		Short: "Follow a device's directory: write its stream to stdout until it ends",
		Long: `Follow the directory that 'statusbyte recv' fills for a device: write the data to stdout, one packet behind the other, until the
stream ends. With --remove what was written is removed, so that the directory does not fill up.

Where packets are missing (a file's number was left out) it says so on stderr, goes on, and ends with exit status 1.`,
		Example: `  gorxe statusbyte tail /data/device-003 --remove | ffmpeg -f rawvideo ...`,
		Args:    cli.Named("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return tail(cmd.Context(), args[0], remove, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "remove files that were written")
	return cmd
}

// errHoles: what was written is not the whole stream.
var errHoles = errors.New("packets are missing from the stream: recv or its sender lost them")

func tail(ctx context.Context, dir string, remove bool, out, diag io.Writer) error {
	last, holes := "", 0
	number := numbers{next: -1}
	for {
		// The mark is looked for first: all files are there before it.
		_, err := os.Stat(filepath.Join(dir, statusbyte.EndMark))
		end := err == nil
		names, err := newer(dir, last)
		if err != nil {
			return fmt.Errorf("follow a device's directory: %w", err)
		}
		for _, name := range names {
			if number.jumps(name) {
				holes++
				fmt.Fprintf(diag, "Packets are missing before %s.\n", filepath.Join(dir, name))
			}
			if err := copyOut(filepath.Join(dir, name), remove, out); err != nil {
				return err
			}
			if !remove { // else those that are there are new, and a directory that is empty may be numbered from 0 again
				last = name
			}
		}
		if end && len(names) == 0 {
			if holes > 0 {
				return fmt.Errorf("%w (%s)", errHoles, cli.Count(holes, "place"))
			}
			return nil
		}
		if len(names) > 0 {
			continue
		}
		if err := sleepUntil(ctx, time.Now().Add(tailPause)); err != nil {
			return nil // a consumer is ended by a signal: that is no failure
		}
	}
}

// numbers follows the numbers of a directory's files.
type numbers struct{ next int64 } // negative: nobody knows

// jumps tells whether a number was left out before this file. One that is lower than expected begins a new count.
func (n *numbers) jumps(name string) bool {
	v, err := strconv.ParseInt(strings.TrimSuffix(name, statusbyte.StoreSuffix), 10, 64)
	if err != nil {
		return false // nothing of recv's
	}
	jump := n.next >= 0 && v > n.next
	n.next = v + 1
	return jump
}

// newer lists the files behind the one called last, in order. A directory that is not there yet has none.
func newer(dir, last string) ([]string, error) {
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

func copyOut(name string, remove bool, out io.Writer) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("follow a device's directory: %w", err)
	}
	_, err = io.Copy(out, f)
	err = errors.Join(err, f.Close())
	if err == nil && remove {
		err = os.Remove(name)
	}
	if err != nil {
		return fmt.Errorf("follow a device's directory: %w", err)
	}
	return nil
}

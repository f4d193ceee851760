package run

import (
	"errors"
	"fmt"
	"os"

	"github.com/gorxe/gorxe/internal/sysfs"
)

// newTree creates the files of the device in the first directory that can be written: the one for
// temporary files ($TMPDIR or /tmp), that of the user, or /dev/shm.
func newTree(d *sysfs.Device) (*sysfs.Tree, error) {
	var errs []error
	for _, dir := range []string{os.TempDir(), os.Getenv("XDG_RUNTIME_DIR"), "/dev/shm"} {
		if dir == "" {
			continue
		}
		t, err := sysfs.New(dir, d)
		if err == nil {
			return t, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%w\nset TMPDIR to a directory that can be written", errors.Join(errs...))
}

package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/osnet"
)

// rootDir has the sockets of services of root.
const rootDir = "/run/gorxe"

const suffix = ".sock"

// NoSocket is the value of the flags --socket with which no service is started or joined.
const NoSocket = "none"

// sharedTmp is the folder for temporary files of all users. A variable for tests.
var sharedTmp = "/tmp"

// userDirs returns the folders with sockets of services of the present user, first the one for new
// services. The others are those of the same user with another environment: cron jobs, su and
// containers often have no XDG_RUNTIME_DIR. Jobs may have a TMPDIR of their own, so this comes
// last, unless there is no other folder.
func userDirs() (list []string) {
	uid := os.Geteuid()
	if d := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) && isOwn(d) {
		list = append(list, filepath.Join(d, "gorxe"))
	}
	name := fmt.Sprintf("gorxe-%d", uid)
	shared, private := filepath.Join(sharedTmp, name), filepath.Join(os.TempDir(), name)
	if unix.Access(sharedTmp, unix.W_OK|unix.X_OK) != nil {
		shared, private = private, shared
	}
	for _, d := range []string{shared, fmt.Sprintf("/run/user/%d/gorxe", uid), private} {
		if !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

// isOwn reports whether a directory belongs to the present user, as XDG_RUNTIME_DIR has to. After
// su or sudo it may be that of another user, and in a container it may not exist.
func isOwn(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR &&
		int(st.Uid) == os.Geteuid()
}

// dirs returns the folders with sockets, that of root first.
func dirs() []string { return append([]string{rootDir}, userDirs()...) }

// Paths returns the standard paths of the socket of a service for an interface or an address: that
// of root's service, then those of the present user's.
func Paths(name string) (list []string) {
	if name == "" || strings.ContainsAny(name, "/\x00") {
		return nil
	}
	for _, d := range dirs() {
		list = append(list, filepath.Join(d, name+suffix))
	}
	return list
}

// DefaultPath returns the standard path for a service that the present user starts.
func DefaultPath(name string) string {
	list := Paths(osnet.MainName(name))
	if len(list) == 0 {
		return ""
	}
	if os.Geteuid() == 0 {
		return list[0]
	}
	return list[1]
}

// Sockets returns the sockets at standard paths that exist.
func Sockets() (list []string) {
	for _, d := range dirs() {
		found, _ := filepath.Glob(filepath.Join(d, "*"+suffix))
		list = append(list, found...)
	}
	return list
}

// makeDir makes the folder of a socket if it is a standard one. Everybody may enter that of root,
// because the mode of each socket says who may connect. The user's folder may be in /tmp, where
// others could have made it first.
func makeDir(dir string) error {
	mode := os.FileMode(0o700)
	switch {
	case dir == rootDir:
		mode = 0o755
	case !slices.Contains(userDirs(), dir):
		return nil
	}
	err := os.Mkdir(dir, mode)
	if err == nil {
		err = os.Chmod(dir, mode) // whatever the umask is
	}
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s, which is to have the folder of the socket, does not exist: create it, "+
			"or choose another socket with --socket: %w", filepath.Dir(dir), err)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the folder of the socket: %w", err)
	}
	return checkDir(dir)
}

// checkDir returns an error if another user may replace a socket in a folder of the user.
func checkDir(dir string) error {
	if !slices.Contains(userDirs(), dir) {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a folder of this user that only this user may write: remove it",
			dir)
	}
	return nil
}

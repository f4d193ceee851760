package confine

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// User is a user and a group.
type User struct{ UID, GID int }

// Users that DefaultUser tries, and the number of the overflow user, which has no files.
const (
	ownUser    = "gorxe"
	nobody     = "nobody"
	overflowID = 65534
)

// maxID is the largest user or group number. The next one means "no change" to the kernel.
const maxID = 1<<32 - 2

// ParseUser parses NAME, UID, NAME:GROUP or UID:GID. Without a group, it is the user's primary
// group, or the number of the user if the user is unknown to the system.
func ParseUser(text string) (*User, error) {
	name, group, hasGroup := strings.Cut(text, ":")
	u := new(User)
	entry, err := user.Lookup(name)
	if err != nil {
		if u.UID, err = parseID(name); err != nil {
			return nil, fmt.Errorf("no such user %q: use NAME, UID or UID:GID", name)
		}
		u.GID = u.UID
		if entry, err = user.LookupId(name); err == nil {
			u.GID, err = parseID(entry.Gid)
		} else {
			err = nil // the user has a number only
		}
	} else if u.UID, err = parseID(entry.Uid); err == nil {
		u.GID, err = parseID(entry.Gid)
	}
	if err != nil {
		return nil, err
	}
	if !hasGroup {
		return u, nil
	}
	if g, err := user.LookupGroup(group); err == nil {
		group = g.Gid
	}
	if u.GID, err = parseID(group); err != nil {
		return nil, fmt.Errorf("no such group %q: use a name or a number", group)
	}
	return u, nil
}

func parseID(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err == nil && n > maxID {
		err = strconv.ErrRange
	}
	return int(n), err
}

// DefaultUser returns the user for a process that was started as root: gorxe if the system has such
// a user, otherwise nobody. It returns nil if the process does not run as root.
func DefaultUser() *User {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{ownUser, nobody} {
		if _, err := user.Lookup(name); err != nil {
			continue
		}
		if u, err := ParseUser(name); err == nil && u.UID != 0 {
			return u
		}
	}
	return &User{overflowID, overflowID}
}

// AccessFiles makes all threads access and create files as u. The process keeps its user and the
// capabilities that are not about files.
func (u *User) AccessFiles() error {
	for _, c := range []struct {
		nr uintptr
		id int
	}{{unix.SYS_SETFSGID, u.GID}, {unix.SYS_SETFSUID, u.UID}} {
		// The result is the previous number, also after a failure. An invalid number does not
		// change it and reports the current one.
		if _, _, e := psx.Syscall3(c.nr, uintptr(c.id), 0, 0); e != 0 {
			return fmt.Errorf("access files as user %d: %w", u.UID, e)
		}
		now, _, _ := psx.Syscall3(c.nr, maxID+1, 0, 0)
		if int(now) != c.id {
			return fmt.Errorf("access files as user %d: %w", u.UID, unix.EPERM)
		}
	}
	return nil
}

// switchUser switches to c.User and clears the supplementary groups.
func switchUser(c *Config, r *Report) error {
	u := c.User
	if u == nil {
		return dropGroups(r)
	}
	if u.UID == os.Getuid() && u.UID == os.Geteuid() && u.GID == os.Getegid() {
		return dropGroups(r)
	}
	own := func(int) error { return nil }
	if c.Own != nil {
		own = c.Own
	}
	stay := func(err error) bool {
		if !c.UserOptional || os.Geteuid() == u.UID {
			return false
		}
		r.missing("still user %d: switching to user %d failed: %v", os.Geteuid(), u.UID, err)
		return true
	}
	if err := own(u.UID); err != nil {
		// No CAP_CHOWN, or a user namespace without this user. As another user than the owner, the
		// process could not use what it has opened.
		if stay(err) {
			return dropGroups(r)
		}
		return err
	}
	if err := u.become(c.Keep); err != nil {
		if stay(err) {
			return own(os.Geteuid())
		}
		return err
	}
	return nil
}

// dropGroups clears the supplementary groups of a process that keeps its user. Without CAP_SETGID
// it keeps them: they may be how its user was given access to Config.Dirs.
func dropGroups(r *Report) error {
	err := syscall.Setgroups(nil)
	if errors.Is(err, unix.EPERM) {
		groups, e := os.Getgroups()
		others := slices.DeleteFunc(groups, func(g int) bool { return g == os.Getegid() })
		if e == nil && len(others) > 0 {
			r.missing("supplementary groups %v kept: no CAP_SETGID", others)
		}
		return nil
	}
	return err
}

// become switches the real, effective and saved user and group. The kernel clears the capabilities
// of a process that leaves root, except with PR_SET_KEEPCAPS.
func (u *User) become(keep []Cap) error {
	if len(keep) > 0 {
		if err := prctlAll(unix.PR_SET_KEEPCAPS, 1); err != nil {
			return err
		}
	}
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("clear the groups: %w", err)
	}
	if err := syscall.Setresgid(u.GID, u.GID, u.GID); err != nil {
		return fmt.Errorf("group %d: %w", u.GID, err)
	}
	if err := syscall.Setresuid(u.UID, u.UID, u.UID); err != nil {
		return fmt.Errorf("user %d: %w", u.UID, err)
	}
	return nil
}

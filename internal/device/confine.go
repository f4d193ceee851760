package device

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/confine"
)

// Confinement has the flags about the privileges of servers.
type Confinement struct {
	// Symlinks means that the server creates symbolic links beneath its directories.
	Symlinks bool
	// Own, if it is not nil, is called as that of confine.Config is.
	Own func(uid int) error

	user userFlag
	off  bool
}

// userFlag is a flag value: a user, or nil for the default.
type userFlag struct {
	*confine.User
	text string
}

// Set implements pflag.Value.
func (u *userFlag) Set(text string) (err error) {
	u.text = text
	u.User, err = confine.ParseUser(text)
	return err
}

// String implements pflag.Value.
func (u *userFlag) String() string { return u.text }

// Type implements pflag.Value.
func (u *userFlag) Type() string { return "user" }

// Register adds the flags. byDefault describes the user of a server that root has started.
func (c *Confinement) Register(fs *pflag.FlagSet, byDefault string) {
	fs.Var(&c.user, "user", "run as this user after the start: NAME, UID or UID:GID "+
		"(default: if started by root, "+byDefault+")")
	fs.BoolVar(&c.off, "no-confine", false,
		"keep all privileges after the start (for debugging)")
}

// DefaultUser describes the default user of servers that write no files.
const DefaultUser = "gorxe if that user exists, otherwise nobody"

// AccessFiles makes the process access files as the user of the --user flag, if it was given. A
// server that opens directories before Apply calls it first, so that it creates them as that user.
func (c *Confinement) AccessFiles() error {
	if c.off || c.user.User == nil {
		return nil
	}
	return c.user.AccessFiles()
}

// Apply drops the privileges that a server does not need when its device and its listeners are
// open. dirs are the directories beneath which it reads and writes files. Apply returns a line for
// the log.
//
// A server with directories keeps its user, unless the --user flag names one, because its files
// should have the same owner as before. It also keeps the right to write to directories of other
// users (CAP_DAC_OVERRIDE), if it has it; Landlock limits that to dirs.
func (c *Confinement) Apply(dirs ...string) (string, error) {
	if c.off {
		return "not confined: all privileges kept (--no-confine)", nil
	}
	conf := confine.Config{Dirs: dirs, Symlinks: c.Symlinks, Own: c.Own}
	switch {
	case c.user.User != nil:
		conf.User = c.user.User
	case len(dirs) > 0:
		conf.Keep = append(conf.Keep, confine.DACOverride)
	default:
		conf.User, conf.UserOptional = confine.DefaultUser(), true
	}
	if confine.MapsNeedBPF() {
		conf.Keep = append(conf.Keep, confine.BPF)
	}
	r, err := confine.Apply(conf)
	if err != nil {
		hint := "--no-confine keeps all privileges"
		if c.user.User != nil && os.Geteuid() != 0 {
			hint = "--user needs root: leave it out"
		}
		return "", fmt.Errorf("%w (%s)", err, hint)
	}
	return "confined: " + r.String(), nil
}

// ApplyAndLog is Apply. It writes the line to w.
func (c *Confinement) ApplyAndLog(w io.Writer, dirs ...string) error {
	text, err := c.Apply(dirs...)
	if err == nil {
		fmt.Fprintln(w, text)
	}
	return err
}

package confine

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Cap is the number of a capability.
type Cap uint8

// Capabilities that gorxe's servers use.
const (
	DACOverride Cap = unix.CAP_DAC_OVERRIDE
	BPF         Cap = unix.CAP_BPF
)

// capName has the names of capabilities that messages mention.
var capName = map[Cap]string{
	unix.CAP_DAC_OVERRIDE: "CAP_DAC_OVERRIDE", unix.CAP_SETGID: "CAP_SETGID",
	unix.CAP_SETUID: "CAP_SETUID", unix.CAP_SETPCAP: "CAP_SETPCAP",
	unix.CAP_NET_ADMIN: "CAP_NET_ADMIN", unix.CAP_NET_RAW: "CAP_NET_RAW",
	unix.CAP_IPC_LOCK: "CAP_IPC_LOCK", unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
	unix.CAP_BPF: "CAP_BPF",
}

// String returns the name of the capability, or its number.
func (c Cap) String() string {
	if s := capName[c]; s != "" {
		return s
	}
	return fmt.Sprintf("capability %d", uint8(c))
}

func capNames(list []Cap) string {
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = c.String()
	}
	return strings.Join(names, ", ")
}

// capSet is a set of capabilities, one bit each.
type capSet uint64

func setOf(list []Cap) (s capSet) {
	for _, c := range list {
		s |= 1 << c
	}
	return s
}

func (s capSet) list() (list []Cap) {
	for c := Cap(0); c < 64; c++ {
		if s>>c&1 != 0 {
			list = append(list, c)
		}
	}
	return list
}

// Raise makes all permitted capabilities effective, on all threads. It is for binaries whose file
// capabilities are permitted only (setcap NAME=p), which can also run where they are not granted.
func Raise() error {
	c, err := getCaps()
	if err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	if c.effective == c.permitted {
		return nil
	}
	c.effective = c.permitted
	if err := setCaps(c); err != nil {
		return fmt.Errorf("raise the capabilities: %w", err)
	}
	return nil
}

// MapsNeedBPF reports whether the kernel requires CAP_BPF for changes of an open BPF map: kernels
// before 6.0 do so if unprivileged BPF is disabled.
func MapsNeedBPF() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	major, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), ".")
	n, err := strconv.Atoi(major)
	return err == nil && n < 6
}

// capState has the capability sets of a thread that capget returns.
type capState struct{ effective, permitted, inheritable capSet }

// dropCaps drops all capabilities but keep. The kernel clears the ambient set with the inheritable
// one. The bounding set stays as it is: it limits what executed files can add, which no_new_privs
// and seccomp forbid, and dropping it takes a system call for each capability, on all threads. On a
// busy host, that could delay a server for a minute.
func dropCaps(keep []Cap, r *Report) error {
	have, err := getCaps()
	if err != nil {
		return err
	}
	kept := have.permitted & setOf(keep)
	if err := setCaps(capState{effective: kept, permitted: kept}); err != nil {
		return err
	}
	r.Capabilities = kept.list()
	return nil
}

//go:build linux

package xdp

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/xdp/veth"
	"golang.org/x/sys/unix"
)

// withCapabilities runs f on a thread that has only these effective capabilities.
func withCapabilities(t *testing.T, caps []int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&hdr, &had[0]); err != nil {
		t.Fatal(err)
	}
	some := had
	some[0].Effective, some[1].Effective = 0, 0
	for _, c := range caps {
		some[c/32].Effective |= 1 << (c % 32)
	}
	if err := unix.Capset(&hdr, &some[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&hdr, &had[0]); err != nil {
			t.Errorf("restore the capabilities: %v", err)
		}
	}()
	f()
}

// Open needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and CAP_IPC_LOCK if the packet memory exceeds
// the limit of locked memory. It needs no others, and its errors name what is missing.
func TestOpenCapabilities(t *testing.T) {
	pair := newPair(t, veth.Options{})
	const few, many = 64, 2048 // descriptors in a ring
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	opens := func(caps []int, ring int) (err error) {
		t.Helper()
		e := pair.A.Do(func() error {
			withCapabilities(t, caps, func() {
				var p *Port
				if p, err = Open(pair.A.Iface, Options{RingSize: ring}); err == nil {
					err = p.Close()
				}
			})
			return nil
		})
		if e != nil {
			t.Fatal(e)
		}
		return err
	}
	names := map[int]string{unix.CAP_NET_ADMIN: "CAP_NET_ADMIN", unix.CAP_NET_RAW: "CAP_NET_RAW",
		unix.CAP_BPF: "CAP_BPF"}
	var all []int
	for c := range names {
		all = append(all, c)
	}
	if err := opens(all, few); err != nil {
		t.Errorf("with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF: Open() = %v", err)
	}
	if err := opens(append(all, unix.CAP_IPC_LOCK), many); err != nil {
		t.Errorf("with CAP_IPC_LOCK: Open() = %v", err)
	}
	if err := opens(all, many); limit.Cur < 16<<20 &&
		(!errors.Is(err, ErrPermission) || !strings.Contains(fmt.Sprint(err), "CAP_IPC_LOCK")) {
		t.Errorf("without CAP_IPC_LOCK: Open() = %v, want ErrPermission", err)
	}
	for missing, name := range names {
		var others []int
		for _, c := range all {
			if c != missing {
				others = append(others, c)
			}
		}
		if err := opens(others, few); !errors.Is(err, ErrPermission) ||
			!strings.Contains(fmt.Sprint(err), name) {
			t.Errorf("without %s: Open() = %v, want ErrPermission", name, err)
		}
	}
}

// The library that loads BPF objects reads /proc. Without it, AF_XDP is not supported, so that
// devices use UDP sockets, and the error says why.
func TestNoProc(t *testing.T) {
	err := bpfError("create a map", fmt.Errorf("get token: %w",
		&fs.PathError{Op: "open", Path: "/proc/self/mountinfo", Err: unix.ENOENT}))
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(fmt.Sprint(err), "mount it") {
		t.Errorf("bpfError() = %v, want ErrUnsupported and advice about /proc", err)
	}
}

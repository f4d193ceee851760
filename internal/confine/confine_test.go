package confine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/seccomp"
)

// The tests confine a child process: this test program, started with these variables.
const (
	childMode = "GORXE_CONFINE_TEST"
	childDir  = "GORXE_CONFINE_DIR"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(child(mode))
	}
	os.Exit(m.Run())
}

// answer is what the child prints.
type answer struct {
	Error  string
	Report Report
	Text   string            // Report.String()
	Got    map[string]string // result of each attempt, "" is success
	Owners []int             // arguments of Config.Own
}

// child confines itself, tries what should and should not work, prints the answer, and waits until
// the standard input is closed.
func child(mode string) int {
	dir := os.Getenv(childDir)
	var a answer
	c := Config{Own: func(uid int) error {
		a.Owners = append(a.Owners, uid)
		if mode == "unowned" { // as without CAP_CHOWN
			return unix.EPERM
		}
		return nil
	}}
	switch mode {
	case "plain", "unowned":
		c.User, c.UserOptional = DefaultUser(), true
	case "files":
		c.Dirs, c.Keep = []string{dir}, []Cap{DACOverride}
	case "links":
		c.Dirs, c.Keep, c.Symlinks = []string{dir}, []Cap{DACOverride}, true
	case "keep": // another user that keeps a capability
		c.User, c.Keep = &User{1234, 1235}, []Cap{unix.CAP_NET_RAW}
	case "stuck": // switching is not permitted
		st, err := getCaps()
		if err == nil {
			drop := capSet(1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETPCAP)
			st.effective, st.permitted = st.effective&^drop, st.permitted&^drop
			err = setCaps(st)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		c.User, c.UserOptional = DefaultUser(), true
		c.UserOptional = dir == ""
	}
	if e, ok := absent[mode]; ok {
		if err := forbid(e, unix.SYS_SECCOMP, unix.SYS_LANDLOCK_CREATE_RULESET); err != nil {
			fmt.Println(err)
			return 1
		}
		c.User, c.UserOptional = DefaultUser(), true
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	// A connection to accept later, as a confined process can open none.
	if _, err := net.Dial("tcp", ln.Addr().String()); err != nil {
		fmt.Println(err)
		return 1
	}
	// Threads of all kinds: in a system call, idle, and locked to a goroutine.
	stop := make(chan struct{})
	for range 4 {
		go func() {
			runtime.LockOSThread()
			<-stop
		}()
		go time.Sleep(time.Hour)
		go func() { _ = unix.Nanosleep(&unix.Timespec{Sec: 3600}, nil) }()
	}
	time.Sleep(20 * time.Millisecond)
	r, err := Apply(c)
	if err != nil {
		a.Error = err.Error()
	} else {
		a.Report, a.Text, a.Got = *r, r.String(), attempts(ln, dir)
	}
	for range 4 { // new threads
		go func() {
			runtime.LockOSThread()
			<-stop
		}()
	}
	_ = json.NewEncoder(os.Stdout).Encode(a)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return 0
}

// absent has the modes in which seccomp and Landlock fail, and with which error.
var absent = map[string]syscall.Errno{"lacking": unix.ENOSYS, "forbidden": unix.EPERM}

// forbid makes system calls fail with an error, on all threads.
func forbid(e syscall.Errno, calls ...uint32) error {
	prog := []bpf.Instruction{bpf.LoadAbsolute{Off: seccomp.OffsetNr, Size: seccomp.WordSize}}
	for _, nr := range calls {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpEqual, Val: nr, SkipFalse: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(e)})
	}
	raw, err := bpf.Assemble(append(prog, bpf.RetConstant{Val: allow}))
	if err != nil {
		return err
	}
	if err := setNoNewPrivs(); err != nil {
		return err
	}
	_, err = seccomp.Load(raw, filterFlags)
	return err
}

// attempts tries what a confined process can and cannot do.
func attempts(ln net.Listener, dir string) map[string]string {
	got := map[string]string{}
	try := func(name string, f func() error) {
		got[name] = ""
		if err := f(); err != nil {
			got[name] = err.Error()
			if e := syscall.Errno(0); errors.As(err, &e) {
				got[name] = unix.ErrnoName(e)
			}
		}
	}
	call := func(nr uintptr, args ...uintptr) func() error {
		return func() error {
			args = append(args, 0, 0, 0)
			_, _, e := syscall.Syscall(nr, args[0], args[1], args[2])
			return errnoOf(e)
		}
	}
	socket := func(family, kind int) func() error {
		return func() error {
			fd, err := unix.Socket(family, kind, 0)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
	}
	try("execute", call(unix.SYS_EXECVE))
	try("mount", call(unix.SYS_MOUNT))
	try("ptrace", call(unix.SYS_PTRACE, unix.PTRACE_ATTACH, 0))
	try("unshare", call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER))
	try("load a program", call(unix.SYS_BPF, 5, 0, 0))
	try("become root", call(unix.SYS_SETUID, 0))
	try("signal the parent", call(unix.SYS_KILL, uintptr(os.Getppid()), 0))
	try("packet socket", socket(unix.AF_PACKET, unix.SOCK_RAW))
	try("UDP socket", socket(unix.AF_INET, unix.SOCK_DGRAM))
	try("executable memory", func() error {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		return err
	})
	try("read a file", func() error { _, err := os.ReadFile("/etc/passwd"); return err })
	try("write a file", func() error {
		return os.WriteFile(filepath.Join(os.TempDir(), "gorxe-confine"), nil, 0o600)
	})
	try("TCP socket", socket(unix.AF_INET, unix.SOCK_STREAM))
	try("accept", func() error {
		c, err := ln.Accept()
		if err == nil {
			err = c.Close()
		}
		return err
	})
	try("close the listener", ln.Close)
	try("list interfaces", func() error { _, err := netlink.LinkList(); return err })
	try("collect garbage", func() error { runtime.GC(); return nil })
	try("memory", func() error {
		m, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANON)
		if err == nil {
			err = unix.Munmap(m)
		}
		return err
	})
	if dir != "" {
		try("store", func() error { return store(dir) })
		try("create a link", func() error { return os.Symlink("x", filepath.Join(dir, "link")) })
		try("store beside", func() error { return store(filepath.Dir(dir)) })
	}
	return got
}

// store writes files like a server that stores what it receives.
func store(dir string) error {
	sub := filepath.Join(dir, "sub")
	part, name := filepath.Join(sub, ".part"), filepath.Join(sub, "1")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(part, []byte("x"), 0o644); err != nil {
		return err
	}
	if err := os.Rename(part, name); err != nil {
		return err
	}
	if _, err := os.ReadDir(sub); err != nil {
		return err
	}
	if err := os.Truncate(name, 0); err != nil {
		return err
	}
	return os.Remove(name)
}

// start runs the child and returns its answer and process ID. The child ends with the test.
func start(t *testing.T, mode, dir string) (*answer, int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childMode+"="+mode, childDir+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("child %s: %v", mode, err)
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	a := new(answer)
	if err := json.Unmarshal(line, a); err != nil {
		t.Fatalf("%v in %q", err, line)
	}
	return a, cmd.Process.Pid
}

// checkThreads compares lines of /proc/PID/status of all threads.
func checkThreads(t *testing.T, pid int, want map[string]string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/status"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d threads, %v; want at least 5", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for _, line := range strings.Split(string(text), "\n") {
			key, value, _ := strings.Cut(line, ":")
			value = strings.Join(strings.Fields(value), " ")
			if w, ok := want[key]; ok && value != w {
				t.Errorf("%s: %s is %q, want %q", f, key, value, w)
			}
		}
	}
}

func mask(caps ...Cap) string { return fmt.Sprintf("%016x", uint64(setOf(caps))) }

// expect compares the results of attempts.
func expect(t *testing.T, a *answer, want map[string]string) {
	t.Helper()
	if a.Error != "" {
		t.Fatalf("Apply() = %s", a.Error)
	}
	t.Log(a.Text)
	for name, w := range want {
		if got, ok := a.Got[name]; !ok || got != w {
			t.Errorf("%s: %q, want %q", name, got, w)
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// A confined process has lost its privileges in all threads, those that were there before and new
// ones, and continues to work.
func TestApply(t *testing.T) {
	a, pid := start(t, "plain", "")
	want := map[string]string{
		"execute": "EPERM", "mount": "EPERM", "ptrace": "EPERM", "unshare": "EPERM",
		"load a program": "EPERM", "become root": "EPERM", "signal the parent": "EPERM",
		"packet socket": "EPERM", "TCP socket": "EPERM", "accept": "", "executable memory": "EPERM",
		"write a file": "EPERM",
		"UDP socket":   "", "close the listener": "", "list interfaces": "", "collect garbage": "",
		"memory": "",
	}
	if a.Report.Landlock > 0 {
		want["read a file"] = "EACCES"
	}
	expect(t, a, want)
	if len(a.Report.Capabilities) != 0 || a.Report.Syscalls == 0 ||
		!strings.Contains(a.Text, "no capabilities, no new privileges") {
		t.Errorf("Apply() = %+v", a.Report)
	}
	status := map[string]string{
		"CapInh": mask(), "CapPrm": mask(), "CapEff": mask(), "CapAmb": mask(), "NoNewPrivs": "1",
		"Seccomp": "2",
	}
	if os.Geteuid() == 0 {
		u := DefaultUser()
		status["Groups"] = ""
		status["Uid"] = fmt.Sprintf("%d %[1]d %[1]d %[1]d", u.UID)
		status["Gid"] = fmt.Sprintf("%d %[1]d %[1]d %[1]d", u.GID)
	}
	checkThreads(t, pid, status)
}

// A process that stores files can do so beneath its directory only, even if it belongs to another
// user.
func TestApplyFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 1234, 1234); err != nil {
			t.Fatal(err)
		}
	}
	a, pid := start(t, "files", dir)
	want := map[string]string{"store": "", "execute": "EPERM", "ptrace": "EPERM"}
	if a.Report.Landlock > 0 {
		want["store beside"], want["read a file"], want["write a file"] = "EACCES", "EACCES",
			"EACCES"
		want["create a link"] = "EACCES"
	}
	expect(t, a, want)
	links, _ := start(t, "links", dir)
	expect(t, links, map[string]string{"store": "", "create a link": ""})
	if os.Geteuid() == 0 {
		checkThreads(t, pid, map[string]string{
			"CapPrm": mask(DACOverride), "CapEff": mask(DACOverride), "CapInh": mask(),
			"CapAmb": mask(), "NoNewPrivs": "1", "Seccomp": "2",
		})
	}
}

// A process can switch the user and keep a capability.
func TestApplyKeep(t *testing.T) {
	needRoot(t)
	a, pid := start(t, "keep", "")
	expect(t, a, map[string]string{"become root": "EPERM"})
	checkThreads(t, pid, map[string]string{
		"Uid": "1234 1234 1234 1234", "Gid": "1235 1235 1235 1235", "Groups": "",
		"CapPrm": mask(unix.CAP_NET_RAW), "CapEff": mask(unix.CAP_NET_RAW), "CapInh": mask(),
	})
}

// If switching the user is not permitted, the default user is skipped and reported. A user that was
// asked for is an error.
func TestApplyUserNotPermitted(t *testing.T) {
	needRoot(t)
	a, pid := start(t, "stuck", "")
	expect(t, a, map[string]string{"execute": "EPERM"})
	if !strings.Contains(strings.Join(a.Report.Missing, " "), "still user 0") {
		t.Errorf("Missing = %q, want the user", a.Report.Missing)
	}
	if want := []int{DefaultUser().UID, 0}; !slices.Equal(a.Owners, want) {
		t.Errorf("Apply() called Own with %v, want %v", a.Owners, want)
	}
	checkThreads(t, pid, map[string]string{"CapEff": mask(), "CapPrm": mask(), "NoNewPrivs": "1"})
	if a, _ = start(t, "stuck", t.TempDir()); !strings.Contains(a.Error, "switch the user") {
		t.Errorf("Apply() = %q, want an error about the user", a.Error)
	}
}

// What the process has opened gets the user as its owner. If that is not possible, the process
// keeps its user, because it could not use this anymore as another one.
func TestApplyOwner(t *testing.T) {
	needRoot(t)
	user := DefaultUser().UID
	a, _ := start(t, "plain", "")
	if a.Report.UID != user || !slices.Equal(a.Owners, []int{user}) {
		t.Errorf("Apply() switched to user %d and called Own with %v, want %d twice", a.Report.UID,
			a.Owners, user)
	}
	a, pid := start(t, "unowned", "")
	expect(t, a, map[string]string{"execute": "EPERM"})
	if a.Report.UID != 0 || !slices.Equal(a.Owners, []int{user}) ||
		!strings.Contains(strings.Join(a.Report.Missing, " "), "still user 0") {
		t.Errorf("Apply() = %+v and called Own with %v, want user 0 and one call with %d", a.Report,
			a.Owners, user)
	}
	checkThreads(t, pid, map[string]string{"CapEff": mask(), "CapPrm": mask(), "Groups": ""})
}

// Apply continues without seccomp and Landlock, and says so.
func TestApplyAbsent(t *testing.T) {
	for mode := range absent {
		a, pid := start(t, mode, "")
		expect(t, a, map[string]string{"UDP socket": "", "collect garbage": ""})
		missing := strings.Join(a.Report.Missing, " ")
		if !strings.Contains(missing, "seccomp") || !strings.Contains(missing, "Landlock") ||
			a.Report.Syscalls != 0 || a.Report.Landlock != 0 {
			t.Errorf("%s: Apply() = %+v, want seccomp and Landlock as missing", mode, a.Report)
		}
		checkThreads(t, pid, map[string]string{"CapEff": mask(), "CapPrm": mask(),
			"NoNewPrivs": "1"})
	}
}

// A directory that does not exist is an error.
func TestApplyNoDirectory(t *testing.T) {
	a, _ := start(t, "files", filepath.Join(t.TempDir(), "none"))
	if a.Report.Landlock > 0 || (a.Error == "" && len(a.Report.Missing) == 0) {
		t.Errorf("Apply() = %+v, want an error", a)
	}
}

func TestParseUser(t *testing.T) {
	for text, want := range map[string]User{
		"root": {0, 0}, "0": {0, 0}, "4000001": {4000001, 4000001}, "12:34": {12, 34},
		"root:77": {0, 77}, "77:root": {77, 0}, "0:4294967294": {0, 4294967294},
	} {
		if u, err := ParseUser(text); err != nil || *u != want {
			t.Errorf("ParseUser(%q) = %v, %v; want %v", text, u, err, want)
		}
	}
	for _, text := range []string{"", ":", "no-such-user", "-1", "1:", "1:no-such-group",
		"4294967295", "1:4294967295", "1:2:3"} {
		if u, err := ParseUser(text); err == nil {
			t.Errorf("ParseUser(%q) = %v, want an error", text, *u)
		}
	}
}

func TestDefaultUser(t *testing.T) {
	u := DefaultUser()
	if root := os.Geteuid() == 0; root != (u != nil) || root && (u.UID == 0 || u.GID == 0) {
		t.Errorf("DefaultUser() = %v", u)
	}
}

package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/interop/guest/image"
	"github.com/gorxe/gorxe/interop/guest/wire"
)

// Config describes a machine.
type Config struct {
	Image  *image.Image
	Name   string           // host name in the guest
	Tap    *os.File         // an open tap device, owned by Boot
	MAC    net.HardwareAddr // of the guest's eth0
	MTU    int              // largest MTU of eth0
	Memory int              // MiB; 0 = 384
	CPUs   int              // 0 = 1
	// Start starts the command on a thread that lives as long as the machine (see lab.NS). Nil:
	// cmd.Start.
	Start func(cmd *exec.Cmd) error
}

// KVMVariable is the environment variable that, if not empty, lets guests run on KVM. By default
// they are emulated: nested and restricted KVMs exist that start and then fail.
const KVMVariable = "GORXE_INTEROP_KVM"

// Defaults of Config, and limits.
const (
	defaultMemory = 384
	bootPatience  = 2 * time.Minute // on an overloaded host; 3 s on an idle one
	consoleKept   = 64 << 10        // bytes of the guest's console
)

// ErrGone means that the guest is not there (anymore).
var ErrGone = errors.New("guest: the machine is gone: read its console and boot it again")

// VM is a running guest. Its methods are safe for concurrent use.
type VM struct {
	cfg     Config
	cmd     *exec.Cmd
	stderr  *bytes.Buffer
	console *tailBuffer
	agent   net.Conn
	qmp     net.Conn
	qmpIn   *bufio.Reader
	qmpMu   sync.Mutex
	Uptime  string // the guest's clock when the agent was ready, in seconds
	// from the start to the agent's first message: how fast this host runs guests
	Took time.Duration

	wmu sync.Mutex // one frame at a time

	mu    sync.Mutex
	procs map[uint32]*Process
	next  uint32

	down chan struct{} // closed when qemu has ended
	once sync.Once
}

// Boot starts a machine and returns when its agent answers.
func Boot(ctx context.Context, cfg Config) (*VM, error) {
	if cfg.Memory == 0 {
		cfg.Memory = defaultMemory
	}
	if cfg.CPUs == 0 {
		cfg.CPUs = 1
	}
	if cfg.Start == nil {
		cfg.Start = (*exec.Cmd).Start
	}
	v := &VM{
		cfg: cfg, stderr: new(bytes.Buffer), console: new(tailBuffer), procs: map[uint32]*Process{},
		next: 1,
		down: make(chan struct{}),
	}
	start := time.Now()
	if err := v.launch(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, bootPatience)
	defer cancel()
	if err := v.greet(ctx); err != nil {
		v.Close()
		return nil, fmt.Errorf("guest: %s did not boot: %w\nqemu: %s\nconsole: %s", cfg.Name, err,
			v.stderr, v.Console())
	}
	v.Took = time.Since(start)
	go v.dispatch()
	return v, nil
}

// launch starts qemu with one side of three sockets.
func (v *VM) launch() error {
	var ours [3]net.Conn
	var theirs [3]*os.File
	for i := range ours {
		var err error
		if ours[i], theirs[i], err = socketPair(); err != nil {
			return err
		}
		defer theirs[i].Close()
	}
	defer v.cfg.Tap.Close()
	// Descriptors in the child: 3 agent, 4 console, 5 control, 6 tap.
	v.cmd = exec.Command("qemu-system-x86_64", v.arguments()...)
	v.cmd.ExtraFiles = append(theirs[:], v.cfg.Tap)
	v.cmd.Stderr = v.stderr
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	if err := v.cfg.Start(v.cmd); err != nil {
		for _, c := range ours {
			c.Close()
		}
		return fmt.Errorf("guest: start qemu: %w", err)
	}
	v.agent, v.qmp, v.qmpIn = ours[0], ours[2], bufio.NewReader(ours[2])
	go func() { _, _ = io.Copy(v.console, ours[1]); ours[1].Close() }()
	go func() {
		_ = v.cmd.Wait() // usually killed: its status means nothing
		close(v.down)
		v.agent.Close()
	}()
	return nil
}

// socketPair returns both sides of a stream: one for this program, one to be inherited.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "guest"), os.NewFile(uintptr(fds[1]), "qemu")
	defer mine.Close()
	c, err := net.FileConn(mine)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return c, theirs, nil
}

func (v *VM) arguments() []string {
	c := &v.cfg
	accel := []string{"-accel", "tcg,thread=multi,tb-size=256", "-cpu",
		"qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+rdrand,+rdseed"}
	if os.Getenv(KVMVariable) != "" {
		accel = []string{"-accel", "kvm", "-cpu", "host"}
	}
	off := func(features ...string) string {
		var b strings.Builder
		for _, f := range features {
			b.WriteString("," + f + "=off")
		}
		return b.String()
	}
	// Packets leave the guest complete and arrive as they were on the wire: no checksum or
	// segmentation offload.
	nic := "virtio-net-pci,netdev=n0,id=nic0,romfile=,mac=" + c.MAC.String() + ",host_mtu=" +
		strconv.Itoa(c.MTU) +
		",mrg_rxbuf=on,rx_queue_size=1024" +
		off("csum", "gso", "guest_csum", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo",
			"host_tso4", "host_tso6", "host_ecn", "host_ufo")
	// With one possible processor QEMU 7.2 translates the guest as if nothing ran in parallel,
	// although the device runs on a separate thread. About once in a thousand scenarios the guest
	// stopped transmitting, as if a kick was lost; this cause is likely but not proven. A second
	// possible processor makes QEMU translate for parallel execution.
	cpus := fmt.Sprintf("%d,maxcpus=%d", c.CPUs, c.CPUs+1)
	boot := "console=ttyS0 quiet panic=-1 nokaslr mitigations=off nopti audit=0 apparmor=0 tsc=reliable no_timer_check " +
		"random.trust_cpu=on net.ifnames=0"
	return append(accel,
		"-name", c.Name, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-M", "pc,hpet=off,vmport=off,usb=off", "-smp", cpus, "-m", strconv.Itoa(c.Memory),
		"-kernel", c.Image.Kernel, "-initrd", c.Image.Initrd, "-append", boot,
		"-chardev", "socket,id=agent,fd=3", "-device", "virtio-serial-pci", "-device",
		"virtserialport,chardev=agent,name="+wire.PortName,
		"-chardev", "socket,id=console,fd=4", "-serial", "chardev:console",
		"-chardev", "socket,id=control,fd=5", "-mon", "chardev=control,mode=control",
		"-netdev", "tap,id=n0,fd=6", "-device", nic)
}

// greet waits for the agent's first frame and opens the control channel.
func (v *VM) greet(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = v.agent.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	f, err := wire.Read(v.agent)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%w (%w)", ErrGone, err)
	case f.Kind != wire.Hello:
		return wire.ErrBroken
	}
	v.Uptime = string(f.Payload)
	if _, err := v.qmpIn.ReadString('\n'); err != nil { // qemu's greeting
		return err
	}
	return v.control("qmp_capabilities", nil)
}

// control sends qemu a command and waits for its answer.
func (v *VM) control(command string, args map[string]any) error {
	v.qmpMu.Lock()
	defer v.qmpMu.Unlock()
	msg := map[string]any{"execute": command}
	if args != nil {
		msg["arguments"] = args
	}
	b, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	if _, err := v.qmp.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("%w (%w)", ErrGone, err)
	}
	for {
		line, err := v.qmpIn.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("%w (%w)", ErrGone, err)
		}
		var answer struct {
			Return any
			Error  *struct{ Desc string }
			Event  string
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			return fmt.Errorf("guest: qemu answered %q: %w", line, err)
		}
		switch {
		case answer.Event != "":
			continue
		case answer.Error != nil:
			return fmt.Errorf("guest: qemu refused %s: %s", command, answer.Error.Desc)
		}
		return nil
	}
}

// SetLink plugs or unplugs the guest's network cable.
func (v *VM) SetLink(up bool) error {
	return v.control("set_link", map[string]any{"name": "nic0", "up": up})
}

// Console returns the recent output of the guest's kernel and agent.
func (v *VM) Console() string { return v.console.String() }

// ticksPerSecond is the unit of /proc/PID/stat (USER_HZ, the same on all relevant architectures).
const ticksPerSecond = 100

// CPUTime returns what the machine has cost this host so far, in steps of 10 ms: its virtual CPUs,
// its devices, and the host kernel's work for them. A guest's own figures include time that others
// took from it.
func (v *VM) CPUTime() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("%w (%w)", ErrGone, err)
	}
	return parseCPUTime(b)
}

// parseCPUTime adds user and system time, fields 14 and 15 of proc(5)'s stat. The name, field 2, is
// in parentheses and may contain anything.
func parseCPUTime(stat []byte) (time.Duration, error) {
	w := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(w) < 13 {
		return 0, fmt.Errorf("guest: /proc/PID/stat reads %q", stat)
	}
	var sum time.Duration
	for _, f := range w[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("guest: /proc/PID/stat: %w", err)
		}
		sum += time.Duration(n) * time.Second / ticksPerSecond
	}
	return sum, nil
}

// Down is closed when the machine has ended.
func (v *VM) Down() <-chan struct{} { return v.down }

// Close ends the machine at once, like a power failure. Closing twice has no effect.
func (v *VM) Close() {
	v.once.Do(func() {
		if v.cmd == nil || v.cmd.Process == nil {
			return
		}
		_ = v.cmd.Process.Kill() // an error means that it has ended already
		<-v.down
		v.agent.Close()
		v.qmp.Close()
	})
}

// dispatch distributes what the agent sends until the stream ends.
func (v *VM) dispatch() {
	in := bufio.NewReaderSize(v.agent, wire.MaxPayload)
	for {
		f, err := wire.Read(in)
		if err != nil {
			break
		}
		v.mu.Lock()
		p := v.procs[f.Process]
		if p != nil && f.Kind == wire.Exit {
			delete(v.procs, f.Process)
		}
		v.mu.Unlock()
		if p != nil {
			p.take(f)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.procs {
		p.end(Result{Status: StatusGone}, ErrGone)
	}
	v.procs = nil
}

func (v *VM) send(f wire.Frame) error {
	v.wmu.Lock()
	defer v.wmu.Unlock()
	if err := wire.Write(v.agent, f); err != nil {
		return fmt.Errorf("%w (%w)", ErrGone, err)
	}
	return nil
}

// tailBuffer keeps the end of what is written to it.
type tailBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (t *tailBuffer) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if n := len(t.b) - consoleKept; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(b), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}

package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/udp"
)

// Usage errors print one line that says what is wrong; the exit status is 2.
func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"prf":                                        `did you mean "perf"`,
		"upp":                                        `did you mean "up"`, // not "dump"
		"rum":                                        `did you mean "run"`,
		"sned":                                       `did you mean "send"`,
		"nonsense":                                   `no such command "nonsense"`,
		"--bogus":                                    "--bogus",
		"up":                                         "IFACE is missing",
		"up a b":                                     "one argument too many",
		"up a --queues -1":                           "0 to 256",
		"perf write-bw h -b -R":                      "do not work with -R",
		"perf write-imm-bw h -R":                     "do not work with -R",
		"perf write-lat h --run_infinitely":          "measures bandwidth",
		"up a --window -1":                           "0 to 4096",
		"up a --window 5000":                         "0 to 4096",
		"up a --window much":                         "not a whole number",
		"up a --mode fast":                           "auto, native, generic",
		"up a --port 70000":                          "1 to 65535",
		"up a --port tcp":                            "not a whole number",
		"up a --user no-such-user":                   "NAME, UID or UID:GID",
		"up a --congestion reno":                     "adaptive, dcqcn, none",
		"up a --selective-repeat=some":               "neither true nor false",
		"up a --class-map 8:1":                       "traffic class 8 is out of range: choose 0 to 7",
		"up a --class-map 7:64":                      "DSCP 64 is out of range: choose 0 to 63",
		"up a --class-map 7:46:8":                    "PCP 8 is out of range: choose 0 to 7",
		"up a --class-map 7:1,7:2":                   "class 7 has two entries",
		"up a --class-map 7":                         "write CLASS:DSCP",
		"up a --class-map=":                          "write CLASS:DSCP",
		"ping h --class-map 1:x":                     "whole number: choose 0 to 63",
		"dump --class-map 1:-1":                      "choose 0 to 63",
		"up a --class-config 8:fifo":                 "traffic class 8 is out of range: choose 0 to 7",
		"up a --class-config 7:lifo":                 "choose fifo, round-robin",
		"up a --class-config 0:rate=x":               "100Mb/s",
		"up a --link-rate 1":                         "choose 1Mb/s",
		"up a --program-qps 0":                       "out of range",
		"up a --program-rate 1kb/s":                  "choose 8kb/s",
		"up a --user-programs 255":                   "choose 1 to 254",
		"run --program-memory 0 -- true":             "out of range",
		"ping h --class 8":                           "8 is out of range: choose 0 to 7",
		"ping h --rping --class -1":                  "-1 is out of range: choose 0 to 7",
		"perf write-bw h --class x":                  "not a whole number",
		"pingpong rc --class 8":                      "8 is out of range: choose 0 to 7",
		"statusbyte send h f --class 8":              "8 is out of range: choose 0 to 7",
		"ping h --congestion=":                       "adaptive, dcqcn, none",
		"ping h --selective-repeat=2":                "neither true nor false",
		"pingpong rc --congestion x":                 "adaptive, dcqcn, none",
		"perf write-bw h --congestion":               "--congestion",
		"fuzz h --selective-repeat=no":               "neither true nor false",
		"demo --congestion cubic":                    "adaptive, dcqcn, none",
		"bench --congestion 1":                       "adaptive, dcqcn, none",
		"statusbyte send h f --selective-repeat=off": "neither true nor false",
		"run":                          "PROGRAM is missing",
		"run --loss 1 -- true":         "1%",
		"run --delay 2s -- true":       "out of range",
		"devices eth0":                 "one argument too many",
		"ping":                         "HOST is missing",
		"ping h -c 0":                  "1 to",
		"ping h -s 2m":                 "1 MiB",
		"ping h -s -1":                 "not a size",
		"ping h -i -1":                 "out of range",
		"ping h -t never":              "not a duration",
		"ping h -I a -d b":             "mean the same",
		"ping fe80::1":                 "fe80::1%",
		"perf":                         "OP is missing",
		"perf write":                   "write-bw",
		"perf write-bw a b":            "one argument too many",
		"perf write-bw h -s 0":         "1 B to 256 MiB",
		"perf write-bw h -n 0":         "1 to",
		"perf write-bw h -D 0":         "out of range",
		"perf write-bw h -q 0":         "1 to 256",
		"perf write-bw h -t 10000":     "1 to 8192",
		"perf write-bw h -m 1500":      "1024",
		"perf write-bw h -x -1":        "0 to 255",
		"perf write-bw h -a -s 1":      "-a",
		"perf write-lat h -b":          "-b",
		"perf write-lat h -q 2":        "-q",
		"perf write-bw h -n 1 -D 1":    "-D",
		"perf atomic-bw h -s 16":       "8 bytes",
		"demo now":                     "one argument too many",
		"demo --loss 1":                "1%",
		"demo --loss 11%":              "0% to 10%",
		"demo --loss -1%":              "0% to 10%",
		"demo --mtu 1000":              "1024",
		"demo --mtu 8192":              "4096",
		"demo --memory --mode native":  "--memory",
		"demo --bulk 1":                "1 MiB",
		"demo --seed x":                "seed",
		"dump a b":                     "one argument too many",
		"dump a --json -w -":           "stdout",
		"ping 10.0.0.2:18516":          "choose the port by a flag",
		"ping [fe80::1%eth0]:7":        "choose the port by a flag",
		"pingpong":                     "KIND",
		"pingpong rc a b":              "one argument too many",
		"version x":                    "one argument too many",
		"completion nosuch":            "bash, fish, powershell, zsh",
		"completion bash x":            "one argument too many",
		"help nosuch":                  `no such command "nosuch"`,
		"help perf nosuch":             `no such command "perf nosuch"`,
		"bench --memory --mode native": "--memory",
		"bench indirect --link memory --mode generic":   "--mode",
		"run --datapath udp --mode generic -- true":     "exclude each other",
		"bench statusbyte --trace-size 1k":              "--trace",
		"statusbyte send h --cameras 1 --frame 640":     "640x480x3",
		"statusbyte send h --cameras 1 --frame 640x480": "640x480x3",
		"statusbyte send h file --fps 5":                "--cameras",
		"statusbyte recv --segment 1m":                  "--dir",
		"send":                                          "SOURCE and HOST:",
		"send file":                                     "HOST: is missing",
		"send x host: --overwrite maybe":                "never, older, always",
		"send x host: --class 7":                        "0 to 6",
		"recv":                                          "--dir is missing",
		"perf write-bw h --allow all":                   "--allow is for servers",
		"perf write-bw h --user 0":                      "--user is for servers",
		"pingpong rc h --deny 1.2.3.4":                  "--deny is for servers",
		"run --socket s --dev lo -- true":               "exclude each other",
		"run --socket none --dev /s -- true":            "exclude each other",
		"run --socket s --datapath xdp -- true":         "leave out --datapath xdp",
		"perf write-bw -d /s --mode generic":            "leave out --datapath xdp and --mode",
		"recv --dir - --allow-pull":                     "one file",
	} {
		t.Run(args, func(t *testing.T) {
			run(t, nil, strings.Fields(args)...).fails(2, want, "--help")
		})
	}
}

// An empty argument, probably an unset variable of a script, is not taken for a missing one.
func TestEmptyArguments(t *testing.T) {
	for _, args := range [][]string{
		{"up", ""}, {"ping", ""}, {"perf", "write-bw", ""}, {"pingpong", "rc", ""}, {"dump", ""},
		{"statusbyte", "tail", ""},
	} {
		run(t, nil, args...).fails(2, "is empty")
	}
}

// Nor is an empty flag taken for a missing one.
func TestEmptyFlags(t *testing.T) {
	for _, args := range [][]string{
		{"perf", "write-bw", "-d", ""}, {"ping", "192.0.2.1", "-I", ""},
		{"recv", "--dir", t.TempDir(), "--token-file="}, {"run", "--dev", "", "--", "true"},
		{"up", "lo", "--socket-group="}, {"statusbyte", "recv", "--dir", ""},
		{"dump", "-w", "", "lo"}, {"bench", "--memory", "--only="}, {"ps", "--socket", ""},
	} {
		run(t, nil, args...).fails(2, "is empty")
	}
}

// A full disk behind stdout is an error.
func TestFullStdout(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	server, client := udp.RandomLoopback().String(), udp.RandomLoopback().String()
	start(t, nil, "up", server, "--socket", "none", "--no-confine")
	eventually(t, "the server answers", func() bool {
		c, err := net.Dial("tcp", net.JoinHostPort(server, "18516"))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	for _, args := range []string{"version", "version --json", "devices", "devices --json",
		"", "--help", "perf --help", "help perf", "completion",
		"ping " + server + " -c 1 -d " + client, "perf write-lat " + server + " -n 1 -d " + client,
	} {
		cmd := exec.Command(binary, strings.Fields(args)...)
		cmd.Stdout = full
		var exit *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("gorxe %s > /dev/full: %v, want exit status 1", args, err)
		}
	}
}

// The help text of every command has examples.
func TestHelp(t *testing.T) {
	for _, c := range []string{"", "up", "devices", "ping", "perf", "demo", "bench", "dump", "fuzz",
		"send", "recv", "version"} {
		r := run(t, nil, append(strings.Fields(c), "--help")...).ok()
		if !strings.Contains(r.stdout, "Examples:\n") || r.err != "" {
			t.Errorf("gorxe %s --help has no examples or writes to stderr:\n%s%s", c, r.stdout,
				r.err)
		}
	}
	if r := run(t, nil).ok(); !strings.Contains(r.stdout, "Available Commands") {
		t.Errorf("gorxe without arguments prints no list of commands:\n%s", r.stdout)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if r := run(t, nil, "completion", shell).ok(); !strings.Contains(r.stdout, "gorxe") {
			t.Errorf("completion %s prints no script", shell)
		}
	}
	for args, want := range map[string]string{
		"perf ": "write-bw\nwrite-lat\n", "pingpong ": "rc\nuc\nud\nsrq\n:4", "pingpong rc ": ":4",
		"ping ": ":4", "ping -I l": "lo\n", "ping --congestion ": "adaptive\n", "demo --mtu ": "256\n",
		"up --log ": "debug\n", "up --log-format ": "text\njson\n", "ps ": ":4", "help ": "bench\n",
		"help sim ": "network\n", "recv --dir ": ":16", "recv --token-file ": ":0", "dump ": ":0",
	} {
		r := run(t, nil, append([]string{"__completeNoDesc"}, strings.Split(args, " ")...)...).ok()
		if !strings.HasPrefix(r.stdout, want) {
			t.Errorf("completion of %q = %q, want %q ...", args, r.stdout, want)
		}
	}
}

func TestVersion(t *testing.T) {
	r := run(t, nil, "version").ok()
	if !strings.HasPrefix(r.stdout, "gorxe ") {
		t.Errorf("version prints %q", r.stdout)
	}
	if flag := run(t, nil, "--version").ok(); flag.stdout != r.stdout {
		t.Errorf("--version prints %q, version %q", flag.stdout, r.stdout)
	}
	m := run(t, nil, "version", "--json").ok().json()[0]
	for _, k := range []string{"version", "go", "platform"} {
		if m[k] == nil || m[k] == "" {
			t.Errorf("version --json has no %s: %v", k, m)
		}
	}
}

// Errors that depend on the machine have exit status 1 and say what to do.
func TestFailures(t *testing.T) {
	run(t, nil, "up", "gorxe-none").fails(1, "no such interface", "ip link")
	run(t, nil, "perf", "write-bw", "-d", "gorxe-none").fails(1, "no such interface")
	run(t, nil, "ping", "gorxe.invalid").fails(1, "cannot find host")
	run(t, nil, "ping", "127.0.0.1", "--datapath", "xdp").fails(1, "own address")
	run(t, nil, "ping", "::1").fails(1, "own address")
	run(t, nil, "up", "lo", "--datapath", "xdp").fails(1, "loopback")
	run(t, nil, "up", "192.0.2.254").fails(1, "no IP address", "ip addr")
}

// unprivileged returns the attributes of a process without privileges.
func unprivileged(t *testing.T) *syscall.SysProcAttr {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	const id = 65534
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
}

// A port that needs privileges is an error that says what to do.
func TestPrivilegedPort(t *testing.T) {
	const first = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
	if b, err := os.ReadFile(first); err != nil || strings.TrimSpace(string(b)) != "1024" {
		t.Skipf("%s: %q, %v", first, b, err)
	}
	startAs(t, nil, unprivileged(t), "perf", "write-bw", "-d", udp.RandomLoopback().String(), "-p",
		"80").wait().fails(1, "TCP port 80 needs root", "--port")
}

// Without root the demo uses UDP sockets, says so in one line, and verifies all data.
func TestDemoWithoutPrivileges(t *testing.T) {
	r := startAs(t, nil, unprivileged(t), "demo", "--json", "--bulk", "4m").wait().ok()
	if strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, "UDP sockets") {
		t.Errorf("stderr is %q, want one line about UDP sockets", r.err)
	}
	checkDemo(t, r, "udp", 0, 1024)
	// If the user chose a mode, the demo fails instead.
	startAs(t, nil, unprivileged(t), "demo", "--mode", "generic").wait().fails(1, "root")
}

// Without root, two devices on this host talk over UDP sockets: the server names an address, and
// the clients get another one.
func TestServeWithoutPrivileges(t *testing.T) {
	user, addr := unprivileged(t), udp.RandomLoopback().String()
	up := startAs(t, nil, user, "up", addr, "--json")
	eventually(t, "up listens", func() bool {
		c, err := net.Dial("tcp", net.JoinHostPort(addr, strconv.Itoa(port)))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	m := startAs(t, nil, user, "ping", addr, "-c", "3", "-i", "0", "--json").wait().ok().json()[0]
	if m["received"] != 3.0 || m["datapath"] != "udp" || m["interface"] != "lo" {
		t.Errorf("ping reports %v", m)
	}
	startAs(t, nil, user, "ping", addr, "-c", "1", "--rping").wait().ok()
	m = startAs(t, nil, user, "perf", "write-bw", addr, "-n", "100", "--json").wait().ok().json()[0]
	if m["datapath"] != "udp" {
		t.Errorf("perf reports %v", m)
	}
	startAs(t, nil, user, "up", addr).wait().fails(1, "in use", addr)
	up.cmd.Process.Signal(syscall.SIGTERM)
	events := up.wait().ok().json()
	dev, _ := events[0]["device"].(map[string]any)
	if events[0]["event"] != "up" || dev["port"] != "udp" || dev["port_reason"] == "" {
		t.Errorf("the first event is %v", events[0])
	}
}

// The list of interfaces says what each offers to the user.
func TestDevicesWithoutPrivileges(t *testing.T) {
	r := startAs(t, nil, unprivileged(t), "devices", "--json").wait().ok()
	var list []struct {
		Name      string
		Datapaths []string
		WhyNotXDP string `json:"why_not_xdp"`
		Usable    bool
	}
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if slices.Contains(d.Datapaths, "xdp") || d.WhyNotXDP == "" ||
			d.Usable != (len(d.Datapaths) > 0) {
			t.Errorf("without privileges: %+v", d)
		}
	}
	if r := run(t, nil, "devices").ok(); !strings.Contains(r.stdout, "data paths") {
		t.Errorf("no data paths in the table:\n%s", r.stdout)
	}
}

// A signal that comes twice at once, as from timeout(1), ends a command as one signal does.
func TestRepeatedSignal(t *testing.T) {
	up := start(t, nil, "up", udp.RandomLoopback().String(), "--socket", "none", "--no-confine")
	eventually(t, "the server is ready", func() bool {
		return strings.Contains(up.out.String(), "Answering")
	})
	for range 2 {
		if err := up.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Microsecond)
	}
	up.wait().ok()
}

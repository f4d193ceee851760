package statusbyte

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/limit"
)

func TestParseDevices(t *testing.T) {
	for text, want := range map[string]string{"0": "[0]", "0-3": "[0 1 2 3]", "7,1-2,2": "[7 1 2]",
		"255": "[255]"} {
		if got, err := parseDevices(text); err != nil || fmt.Sprint(got) != want {
			t.Errorf("parseDevices(%q) = %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "256", "3-1", "a", "1,,2", "-1"} {
		if _, err := parseDevices(text); cli.Status(err) != cli.StatusUsage {
			t.Errorf("%q: error %v, want a usage error", text, err)
		}
	}
}

func TestParseFrame(t *testing.T) {
	if n, err := parseFrame("640x480x3"); err != nil || n != 921600 {
		t.Errorf("parseFrame() = %d, %v, want 921600", n, err)
	}
	for _, text := range []string{"", "0x1", "640", "640x", "640x480", "640x480x3x1", "99999x99999x99999", "-1x-1"} {
		if _, err := parseFrame(text); cli.Status(err) != cli.StatusUsage {
			t.Errorf("%q: error %v, want a usage error", text, err)
		}
	}
}

// Wrong arguments are rejected before anything is opened.
func TestUsage(t *testing.T) {
	for _, args := range []string{
		"send", "send host", "send host --cameras 3 file", "send host --cameras 300",
		"send host --cameras 200 --device 100", "send host --cameras 1 --frame x",
		"send host 3=a 3=b", "send host 256=a", "send host - 5=-", "recv --blocks 0",
		"recv --block-size 0", "recv --blocks 4096 --block-size 256m -d lo", "recv --devices 300",
		"recv x", "frobnicate", "tail",
	} {
		root := Command()
		root.SilenceErrors, root.SilenceUsage = true, true
		root.SetFlagErrorFunc(nil)
		root.SetArgs(strings.Fields(args))
		root.SetOut(&bytes.Buffer{})
		if err := root.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

// Flags that are about the directory are usage errors without one, rather than ignored.
func TestRecvFlagsNeedDir(t *testing.T) {
	for _, flag := range []string{"--segment=1m", "--lossless", "--grace=1s", "--sync=false"} {
		root := Command()
		root.SilenceErrors, root.SilenceUsage = true, true
		root.SetArgs([]string{"recv", "-d", "lo", flag})
		err := root.ExecuteContext(t.Context())
		if cli.Status(err) != cli.StatusUsage || !strings.Contains(err.Error(), "--dir") {
			t.Errorf("recv %s: error %v, want a usage error about --dir", flag, err)
		}
	}
}

// The commands in the manifests of directory deploy are valid.
func TestDeployedArguments(t *testing.T) {
	list := regexp.MustCompile(`(?m)(?:args|command): \[(.*)\]$|^CMD \[(.*)\]$`)
	found := 0
	for _, name := range []string{"Containerfile", "compose.yaml", "kubernetes/receiver.yaml",
		"kubernetes/consumers.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../../../deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list.FindAllStringSubmatch(string(text), -1) {
			found++
			args := strings.Split(strings.ReplaceAll(m[1]+m[2], `"`, ""), ", ")
			if args[0] != "statusbyte" {
				t.Errorf("%s runs %q, want statusbyte", name, args)
				continue
			}
			cmd, rest, err := Command().Find(args[1:])
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err == nil {
				err = cmd.ValidateArgs(cmd.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: %q: %v", name, args, err)
			}
		}
	}
	if found < 7 {
		t.Errorf("%d commands found, want at least 7", found)
	}
}

// Senders that fail cannot fill the output of recv --keep. Other reports are always printed.
func TestReportsOfFailedSenders(t *testing.T) {
	sender := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		keep, failed, limited bool
	}{{keep: true, failed: true, limited: true}, {failed: true}, {keep: true}} {
		f, peers := recvFlags{keep: c.keep}, guard.New(limit.Access{}, nil)
		const senders = 10_000
		shown := 0
		for range senders {
			if f.shows(peers, sender, c.failed) {
				shown++
			}
		}
		if shown == 0 || (shown < senders) != c.limited {
			t.Errorf("%+v: %d of %d reports are shown", c, shown, senders)
		}
	}
}

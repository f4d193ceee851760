package statusbyte

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

func TestDeviceList(t *testing.T) {
	for text, want := range map[string]string{"0": "[0]", "0-3": "[0 1 2 3]", "7,1-2,2": "[7 1 2]", "255": "[255]"} {
		if got, err := deviceList(text); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "256", "3-1", "a", "1,,2", "-1"} {
		if _, err := deviceList(text); cli.Status(err) != cli.StatusUsage {
			t.Errorf("%q: %v; want a usage error", text, err)
		}
	}
}

func TestFrameSize(t *testing.T) {
	if n, err := frameSize("640x480x3"); err != nil || n != 921600 {
		t.Errorf("%d, %v", n, err)
	}
	for _, text := range []string{"", "0x1", "640x", "99999x99999x99999", "-1x-1"} {
		if _, err := frameSize(text); cli.Status(err) != cli.StatusUsage {
			t.Errorf("%q: %v; want a usage error", text, err)
		}
	}
}

// What the user cannot mean is told before anything is opened.
func TestUsage(t *testing.T) {
	for _, args := range []string{
		"send", "send host", "send host --cameras 3 file", "send host --cameras 300", "send host --cameras 200 --device 100", "send host --cameras 1 --frame x",
		"send host 3=a 3=b", "send host 256=a", "send host - 5=-", "recv --blocks 0", "recv --block-size 0", "recv --blocks 4096 --block-size 256m -d lo", "recv --devices 300", "recv x", "frobnicate", "tail",
	} {
		root := Command()
		root.SilenceErrors, root.SilenceUsage = true, true
		root.SetFlagErrorFunc(nil)
		root.SetArgs(strings.Fields(args))
		root.SetOut(&bytes.Buffer{})
		if err := root.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%q passes", args)
		}
	}
}

// The arguments in deploy's manifests are such that gorxe takes them.
func TestDeployedArguments(t *testing.T) {
	list := regexp.MustCompile(`(?m)(?:args|command): \[(.*)\]$|^CMD \[(.*)\]$`)
	found := 0
	for _, name := range []string{"Containerfile", "compose.yaml", "kubernetes/receiver.yaml", "kubernetes/consumers.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../../../deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list.FindAllStringSubmatch(string(text), -1) {
			found++
			args := strings.Split(strings.ReplaceAll(m[1]+m[2], `"`, ""), ", ")
			if args[0] != "statusbyte" {
				t.Errorf("%s runs %q", name, args)
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
		t.Errorf("only %d commands found", found)
	}
}

// rig is a connected sender and receiver on an in-memory link.
func rig(t *testing.T, cfg statusbyte.Config) (*statusbyte.Sender, *statusbyte.Receiver) {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var devs [2]*roce.Device
	for i := range devs {
		if devs[i], err = roce.New(link.Port(i)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = devs[i].Close() })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	l, err := statusbyte.Listen(devs[1], netip.AddrPortFrom(devs[1].GIDs()[0].Addr, defaultPort), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var r *statusbyte.Receiver
	accepted := make(chan error, 1)
	go func() {
		var err error
		r, err = l.Accept(ctx)
		accepted <- err
	}()
	s, err := statusbyte.Init(ctx, devs[0], l.Addr(), statusbyte.Config{})
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = s.Close(), r.Close(), l.Close() })
	return s, r
}

// Files and cameras go in one stream each, and what arrives hashes to what was sent; tail gives a stream back.
func TestStreams(t *testing.T) {
	s, r := rig(t, statusbyte.Config{Blocks: 4, BlockSize: 1000})
	dir := t.TempDir()
	content := bytes.Repeat([]byte("0123456789abcdefghijk"), 500)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := openFiles([]string{"9=" + file}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		list = append(list, &camera{dev: uint8(i), frame: 2500, period: time.Millisecond, frames: 10})
	}
	store, err := statusbyte.OpenStore(filepath.Join(dir, "data"), 0)
	if err != nil {
		t.Fatal(err)
	}
	d := newDelivery(r, store, options{timeout: 5 * time.Second})
	sent := make(chan []deviceReport, 1)
	go func() {
		all, err := sendAll(t.Context(), s, list, func(int) {})
		if err := errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
		sent <- all.reports()
	}()
	if err := d.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var rep report
	d.fill(&rep)
	if a, b := fmt.Sprint(<-sent), fmt.Sprint(rep.Devices); a != b {
		t.Errorf("sent\n%s\nreceived\n%s", a, b)
	}
	sum := sha256.Sum256(content)
	if got := rep.Devices[3]; got.Device != 9 || got.SHA256 != hex.EncodeToString(sum[:]) || got.Packets != 11 || rep.Devices[0].Packets != 30 {
		t.Errorf("%+v", rep.Devices)
	}
	var out bytes.Buffer
	if err := tail(t.Context(), store.Dir(9), true, &out, io.Discard); err != nil || !bytes.Equal(out.Bytes(), content) {
		t.Errorf("tail gave %d bytes, %v", out.Len(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(store.Dir(9), "*"+statusbyte.StoreSuffix)); left != nil {
		t.Errorf("tail left %v", left)
	}
}

// A sender that falls silent is given up, if asked.
func TestTimeout(t *testing.T) {
	_, r := rig(t, statusbyte.Config{Blocks: 2, BlockSize: 100})
	if err := newDelivery(r, nil, options{timeout: 30 * time.Millisecond}).run(t.Context()); !errors.Is(err, errTimeout) {
		t.Errorf("%v", err)
	}
}

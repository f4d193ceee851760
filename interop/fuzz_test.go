//go:build interop

package interop_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/packetfuzz"
	"github.com/gorxe/gorxe/interop/lab"
)

// fuzzSeed makes every run send the same cases.
const fuzzSeed = 20261122

// fuzzCases is the number of cases of a run: a few seconds in the core.
func fuzzCases() int {
	if *coreFlag {
		return 300
	}
	return 5000
}

func fuzzArgs(iface, host string) []string {
	return []string{"fuzz", "-d", iface, "--target", host, "--yes", "--json", "--seed",
		strconv.Itoa(fuzzSeed), "--count", strconv.Itoa(fuzzCases()), "--rate", "2000",
		"--check-every", "100", "-t", "3s"}
}

// TestFuzz sends hostile packets to the kernel's rxe, and from a guest to gorxe.
func TestFuzz(t *testing.T) {
	vs := []variant{{lab.MaxMTU, 4096, false, false}}
	if !*coreFlag {
		vs = append(vs, variant{lab.MaxMTU, 4096, true, false})
	}
	kernel := func(t *testing.T, r *rig, v variant) { fuzzKernel(t, r, v) }
	stage(t, "gorxe fuzz against the kernel", vs, kernel)
	if *coreFlag {
		return // AF_XDP in a guest needs Debian 13, see TestInsideGuest
	}
	newerGuests(t)
	stage(t, "gorxe fuzz against a newer kernel", vs[:1], kernel)
	stage(t, "gorxe fuzz against memory of a newer kernel", vs[:1],
		func(t *testing.T, r *rig, v variant) {
			r.plugOut(t)
			r.guestProgram(t, "sh -c 'while :; do ib_write_bw -d rxe0 -x 1 -F; sleep 0.1; done'")
			t.Cleanup(func() { _, _ = r.Guests[0].Exec("killall -q ib_write_bw", patience) })
			r.awaitTCP(t, 18515, false)
			fuzzKernel(t, r, v, "--via", "perftest")
		})
	vs = []variant{{lab.MaxMTU, 4096, false, true}, {lab.MaxMTU, 4096, true, true}}
	stage(t, "gorxe fuzz against gorxe", vs, func(t *testing.T, r *rig, v variant) {
		r.putGorxe(t)
		r.plugOut(t)
		r.watch(t)
		up := r.gorxe(t, "up", "gx0")
		up.says(t, "Ctrl-C ends")
		command := "gorxe " + strings.Join(fuzzArgs("eth0", r.HostAddr(v.v6).String()), " ")
		out, err := r.guestProgram(t, command).wait(10 * time.Minute)
		if err != nil {
			t.Fatalf("gorxe fuzz: %v\n%s", err, out)
		}
		if rep := fuzzReport(t, out); rep.Cases != uint64(fuzzCases()) || !rep.Serving {
			t.Errorf("report: %+v", rep)
		}
		up.interrupt()
		if out, err := up.wait(patience); err != nil {
			t.Errorf("gorxe up: %v\n%s", err, out)
		}
	})
}

// fuzzKernel attacks the guest's rxe. Kernels exist whose rxe does not survive all cases (see
// docs/interop.md), so the test demands only that gorxe fuzz finds out which happened.
func fuzzKernel(t *testing.T, r *rig, v variant, flags ...string) {
	r.plugOut(t)
	r.Recorder.Reset()
	// rping ends when one of its connections fails in a way that it does not expect.
	r.guestProgram(t, "sh -c 'while :; do rping -s -P -a "+guestAddr(v)+"; done'")
	r.awaitCM(t, 7174)
	g := r.gorxe(t, append(fuzzArgs("gx0", r.Guests[0].Addr(v.v6).String()), flags...)...)
	out, err := g.wait(10 * time.Minute)
	rep := fuzzReport(t, out)
	if rep.Serving {
		if err != nil || rep.Cases != uint64(fuzzCases()) {
			t.Errorf("gorxe fuzz: %v; report: %+v", err, rep)
		}
		const script = "killall -q rping; dmesg -c | grep -E 'WARNING:|BUG:|Oops'"
		if res, err := r.Guests[0].Exec(script, 20*time.Second); err == nil && res.Stdout != "" {
			t.Logf("the kernel served until the end, but complained:\n%s", res.Stdout)
		}
		return
	}
	if err == nil || !strings.Contains(out, packetfuzz.ErrStopped.Error()) {
		t.Errorf("the kernel stopped serving, but gorxe fuzz ended with %v:\n%s", err, out)
	}
	console := r.Guests[0].Console()
	t.Logf("the kernel stopped serving after case %d: %s", rep.LastCheck,
		console[max(0, len(console)-2000):])
	r.Guests[0].PowerOff() // the next scenario boots another guest
}

// fuzzReport parses the report, and checks that packets got beyond the first checks of the target.
func fuzzReport(t *testing.T, out string) (rep packetfuzz.Report) {
	t.Helper()
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&rep); err != nil {
		t.Fatalf("gorxe fuzz: %v\n%s", err, out)
	}
	answers := uint64(0)
	for _, a := range rep.Answers {
		answers += a.Packets
	}
	if rep.Frames == 0 || rep.Checks == 0 || rep.Sessions == 0 || answers == 0 {
		t.Errorf("report: %+v", rep)
	}
	t.Logf("%d cases, %d frames, %d connections, %d answers, %d checks", rep.Cases, rep.Frames,
		rep.Sessions, answers, rep.Checks)
	return rep
}

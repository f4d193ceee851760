//go:build interop

package interop_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/interop/guest/image"
	"github.com/gorxe/gorxe/interop/lab"
	"github.com/gorxe/gorxe/interop/peer"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
)

var (
	coreFlag = flag.Bool("core", false, "only the core of the matrix, which a CI run has time for")
	mustFlag = flag.Bool("must", false,
		"install what this host lacks, and fail where a test would skip")
	outFlag  = flag.String("out", "", "folder for a pcap of each scenario that failed")
	debFlag  = flag.String("debian", "", "Debian release of which guests are made, or this host's")
	modeFlag = flag.String("mode", "auto", "XDP mode of gorxe's interface: auto, generic or native")
)

// rig is one lab. Scenarios with the same device MTU share it.
type rig struct {
	*lab.Lab
	dev     *roce.Device // gorxe in this process; nil while another gorxe uses the interface
	release string       // of Debian, in the guests
	told    bool         // gorxe's data path was reported
	lossy   bool         // the scenario's link loses packets forever
}

var (
	current *rig
	release string // of the guests in further labs
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The labs disappear with the process, so a signal needs only to end it.
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-sig
		fmt.Fprintln(os.Stderr, "interop: interrupted")
		os.Exit(1)
	}()
	release = *debFlag
	status := m.Run()
	current.close()
	os.Exit(status)
}

// builtImage is the result of prepare for a release, cached.
type builtImage struct {
	*image.Image
	err error
}

var images = map[string]builtImage{}

func imageOf(release string) (*image.Image, error) {
	b, ok := images[release]
	if !ok {
		b.Image, b.err = prepare(release)
		images[release] = b
	}
	return b.Image, b.err
}

// newerGuests uses Debian's latest release for the rest of the test unless the run has chosen one.
func newerGuests(t *testing.T) {
	if before := release; before == "" {
		release = image.Trixie
		t.Cleanup(func() { release = before })
	}
}

// prepare returns the guest's image, and with -must installs what building it needs.
func prepare(release string) (*image.Image, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces and AF_XDP need root")
	}
	say := func(s string) { fmt.Fprintln(os.Stderr, "interop:", s) }
	if *mustFlag {
		if err := image.Install(ctx, say); err != nil {
			return nil, err
		}
	}
	missing, err := image.Missing()
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("this host lacks %s: 'make interop' installs them",
			strings.Join(missing, " "))
	}
	if err != nil {
		return nil, err
	}
	return image.Get(ctx,
		image.Options{Debian: release, Module: "..", Peers: peer.Sources(), Log: say})
}

// labFor returns the lab with that device MTU. Only one runs at a time because the machine may be
// small.
func labFor(t *testing.T, mtu int) *rig {
	t.Helper()
	if testing.Short() {
		t.Skip("boots virtual machines; not with -short")
	}
	img, err := imageOf(release)
	switch {
	case err != nil && *mustFlag:
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	}
	if current != nil && current.MTU() == mtu && current.release == release && alive(current) {
		return current
	}
	current.close()
	current = nil
	r, err := newRig(img, mtu)
	if err != nil {
		t.Fatal(err)
	}
	current = r
	return r
}

func alive(r *rig) bool {
	for _, g := range r.Guests {
		select {
		case <-g.Down():
			return false
		default:
		}
	}
	return true
}

func newRig(img *image.Image, mtu int) (*rig, error) {
	l, err := lab.New(context.Background(), lab.Options{Image: img, MTU: mtu})
	if err != nil {
		return nil, err
	}
	r := &rig{Lab: l, release: release}
	r.setPace(img)
	return r, nil
}

// slow is the number of times that timeouts for guests are doubled, on a busy host or with a slow
// emulator.
var slow int

// setPace derives the timeouts from the boot time of the guest.
func (r *rig) setPace(img *image.Image) {
	const usual, most = 6 * time.Second, 4
	took := r.Guests[0].Took
	for slow = 0; slow < most && took > usual<<slow; slow++ {
	}
	patience = usualPatience << slow
	fmt.Fprintf(os.Stderr,
		"interop: a guest with Linux %s and device MTU %d took %.1f s to boot; timeouts x %d\n",
		img.Release, r.MTU(), took.Seconds(), 1<<slow)
}

// plugIn opens gorxe's device in this process. plugOut closes it.
func (r *rig) plugIn(t *testing.T) {
	t.Helper()
	if r.dev != nil {
		return
	}
	dev, err := r.open()
	if err != nil {
		t.Fatal(err)
	}
	r.dev = dev
	if !r.told {
		r.told = true
		fmt.Fprintf(os.Stderr, "interop: gorxe's data path at device MTU %d: %s\n", r.MTU(),
			dev.Info().Datapath)
	}
}

func (r *rig) plugOut(t *testing.T) {
	t.Helper()
	if r.dev == nil {
		return
	}
	if err := r.dev.Close(); err != nil {
		t.Errorf("close the device: %v", err)
	}
	r.dev = nil
}

// open opens gorxe's device on the lab's interface.
func (r *rig) open(opts ...roce.Option) (*roce.Device, error) {
	mode, err := xdp.ParseMode(*modeFlag)
	if err != nil {
		return nil, err
	}
	return roce.Open(r.Iface(),
		append(opts, roce.WithXDP(roce.XDPOptions{Mode: mode, NetNS: r.Host.Fd()}))...)
}

func (r *rig) close() {
	if r == nil {
		return
	}
	if r.dev != nil {
		_ = r.dev.Close() // the tests have checked it already
	}
	r.Close()
}

// guest runs a script in the first guest, which must succeed.
func (r *rig) guest(t *testing.T, script string) string {
	t.Helper()
	res, err := r.Guests[0].Exec(script, time.Minute)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		t.Fatalf("in the guest: %s: %v", script, err)
	}
	return res.Stdout
}

// fault makes the guest's network bad in one direction until the test ends. rule is a netem
// discipline of tc.
func (r *rig) fault(t *testing.T, towardsGuest bool, rule string) {
	t.Helper()
	var add, del string
	if towardsGuest {
		// Incoming packets pass through a second device, because only outgoing packets have a
		// queue.
		add = "ip link set ifb0 mtu 9000 txqueuelen 1000 up && tc qdisc add dev eth0 handle ffff: ingress && " +
			"tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0 && tc qdisc add dev ifb0 root netem limit 10000 " + rule
		del = "tc qdisc del dev eth0 ingress; tc qdisc del dev ifb0 root; ip link set ifb0 down"
	} else {
		add, del = "tc qdisc add dev eth0 root netem limit 10000 "+
			rule, "tc qdisc del dev eth0 root"
	}
	r.guest(t, add)
	t.Cleanup(func() {
		if _, err := r.Guests[0].Exec(del, time.Minute); err != nil {
			t.Logf("netem stays: %v", err)
		}
	})
}

// watch saves what crosses the link during the test as a pcap if the test fails.
func (r *rig) watch(t *testing.T) {
	r.Recorder.Reset()
	var before roce.Counters
	if r.dev != nil {
		before = r.dev.Counters()
	}
	t.Cleanup(func() {
		r.complaints(t)
		if !t.Failed() {
			return
		}
		if r.dev != nil {
			t.Logf("gorxe counted: %s", moved(before, r.dev.Counters()))
		}
		if res, err := r.Guests[0].Exec("rdma statistic show link rxe0/1",
			20*time.Second); err == nil {
			t.Logf("the guest says: %s", res.Stdout)
		}
		if !alive(r) {
			t.Logf("the guest is gone; the last that it said:\n%s", r.Guests[0].Console())
		}
		r.savePCAP(t)
	})
}

// complaints fails the test if the guest's kernel has logged a warning.
func (r *rig) complaints(t *testing.T) {
	res, err := r.Guests[0].Exec("dmesg -c", 20*time.Second)
	if err != nil {
		return // the guest is gone, which the test knows
	}
	for _, bad := range []string{"WARNING:", "BUG:", "Oops", "general protection"} {
		if strings.Contains(res.Stdout, bad) {
			t.Errorf("the guest's kernel complains:\n%s", res.Stdout)
			return
		}
	}
}

// moved lists the counters that have grown.
func moved(before, after roce.Counters) string {
	var out []string
	for name, v := range after.All() {
		if d := v - before.Get(name); d != 0 && d <= v {
			out = append(out, fmt.Sprintf("%s %d", name, d))
		}
	}
	return strings.Join(out, ", ")
}

func (r *rig) savePCAP(t *testing.T) {
	if *outFlag == "" {
		return
	}
	name := strings.NewReplacer("/", "_", " ", "_").Replace(strings.TrimPrefix(t.Name(), "Test")) +
		".pcap"
	f, err := os.Create(filepath.Join(*outFlag, name))
	if err != nil {
		t.Log(err)
		return
	}
	defer f.Close()
	n, err := r.SavePCAP(f)
	if err != nil {
		t.Log(err)
		return
	}
	t.Attr("pcap", name)
	t.Logf("%d frames in %s", n, f.Name())
}

// variant describes how a scenario is run.
type variant struct {
	device       int // device MTU
	mtu          bth.MTU
	v6           bool
	gorxePassive bool
}

func (v variant) name() string { return v.role() + "/" + v.ip() + "/" + fmt.Sprint(int(v.mtu)) }

func (v variant) role() string {
	if v.gorxePassive {
		return "passive"
	}
	return "active"
}

func (v variant) ip() string {
	if v.v6 {
		return "IPv6"
	}
	return "IPv4"
}

// pathMTUs are the path MTUs of the matrix by device MTU.
var pathMTUs = map[int][]bth.MTU{1500: {1024, 512, 256}, lab.MaxMTU: {256, 512, 1024, 2048, 4096}}

// variants returns all ways to run a scenario on that device MTU, with -core those that differ
// most.
func variants(device int) []variant {
	var out []variant
	for _, mtu := range pathMTUs[device] {
		for _, v6 := range []bool{false, true} {
			for _, passive := range []bool{false, true} {
				v := variant{device, mtu, v6, passive}
				if !*coreFlag || (mtu == 1024 && !v6) || (mtu == 4096 && v6) {
					out = append(out, v)
				}
			}
		}
	}
	return out
}

// few returns the variants for scenarios that do not depend on the path MTU or that take long.
func few() []variant {
	out := []variant{{lab.MaxMTU, 1024, false, false}, {lab.MaxMTU, 1024, false, true}}
	if !*coreFlag {
		out = append(out, variant{lab.MaxMTU, 4096, true, false},
			variant{lab.MaxMTU, 4096, true, true})
	}
	return out
}

// perDevice calls f with each device MTU of the matrix and a suffix for names of scenarios. A lab
// for another device MTU must boot, so they do not alternate.
func perDevice(f func(device int, suffix string)) {
	f(lab.MaxMTU, "")
	if !*coreFlag {
		f(1500, " (device MTU 1500)")
	}
}

// ofDevice returns the variants with the device MTU.
func ofDevice(device int, vs []variant) (out []variant) {
	for _, v := range vs {
		if v.device == device {
			out = append(out, v)
		}
	}
	return out
}

// play runs f as a subtest for each variant, with gorxe's device in this process.
func play(t *testing.T, scenario string, vs []variant, f func(t *testing.T, r *rig, v variant)) {
	stage(t, scenario, vs, func(t *testing.T, r *rig, v variant) {
		r.plugIn(t)
		r.watch(t)
		f(t, r, v)
	})
}

// stage runs f as a subtest for each variant, with the columns of the final table.
func stage(t *testing.T, scenario string, vs []variant, f func(t *testing.T, r *rig, v variant)) {
	t.Run(scenario, func(t *testing.T) {
		for _, v := range vs {
			t.Run(v.name(), func(t *testing.T) {
				t.Attr("scenario", scenario)
				t.Attr("role", v.role())
				t.Attr("ip", v.ip())
				t.Attr("mtu", fmt.Sprint(int(v.mtu)))
				f(t, labFor(t, v.device), v)
			})
		}
	})
}

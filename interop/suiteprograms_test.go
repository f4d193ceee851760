//go:build interop

package interop_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/syncbuf"
	"github.com/gorxe/gorxe/interop/guest/image"
	"github.com/gorxe/gorxe/xdp/veth"
)

// TestSuitePrograms runs programs of Debian releases under gorxe run on this host, as root and as
// an ordinary user, on both ends of a veth pair: over link-local IPv6 addresses, programs that run
// until a signal ends them, and those of libfabric and UCX, which MPI uses.
func TestSuitePrograms(t *testing.T) {
	for _, release := range suiteReleases() {
		s := suiteOf(t, release)
		for _, uid := range []int{0, ordinaryUser} {
			suiteStage(t, fmt.Sprintf("programs of user %d under gorxe run", uid), s,
				func(t *testing.T) { newSuiteRig(t, s, uid).run(t) })
		}
	}
}

// ordinaryUser is a user without privileges.
const ordinaryUser = 65534

// suiteRig is a veth pair for programs of a Debian release.
type suiteRig struct {
	suite *image.Suite
	uid   int
	pair  *veth.Pair
	dir   string // /tmp of the programs, with gorxe
	local string // link-local address of pair.B, with the interface of pair.A
}

func newSuiteRig(t *testing.T, s *image.Suite, uid int) *suiteRig {
	t.Helper()
	r := &suiteRig{suite: s, uid: uid, dir: t.TempDir()}
	path, err := gorxeBinary()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(filepath.Join(r.dir, "gorxe"), binary, 0o755)
	}
	if err == nil {
		err = os.Chmod(r.dir, 0o777|os.ModeSticky)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.pair, err = veth.New(veth.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.pair.Close() })
	if err := r.pair.B.Do(func() error {
		i, err := net.InterfaceByName(r.pair.B.Iface)
		if err != nil {
			return err
		}
		addrs, err := i.Addrs()
		for _, a := range addrs {
			if ip := a.(*net.IPNet).IP; ip.IsLinkLocalUnicast() {
				r.local = ip.String() + "%" + r.pair.A.Iface
			}
		}
		return err
	}); err != nil || r.local == "" {
		t.Fatalf("no link-local address: %v", err)
	}
	return r
}

// run runs the programs.
func (r *suiteRig) run(t *testing.T) {
	host := r.pair.B.IPv4.Addr().String()
	// qperf polls (-cp1), because its timer can interrupt a request for an event (docs/run.md).
	// Without the scripts of its packages, Debian 12 does not find a library of libfabric.
	const fi = "env LD_PRELOAD=/usr/lib/libpsm1/libpsm_infinipath.so.1.16 fi_pingpong"
	ucx := "env UCX_TLS=rc_v,ud_v UCX_NET_DEVICES=rxe0:1 ucx_perftest"
	if r.suite.Version != "44" { // from Debian 13 on, it expects mpirun otherwise
		ucx += " -P 0"
	}
	for _, p := range []struct{ server, client string }{
		{"ibv_rc_pingpong -g 0 -n 50 -e", host},
		{"ibv_ud_pingpong -g 0 -n 50 -e", host},
		{"ib_write_bw -x 0 -F -n 50", host},
		{"ib_send_lat -x 0 -F -n 50 -e", host},
		{"rping -s -V -C 5 -a ::", "rping -c -V -C 5 -a " + r.local},
		{"ucmatose -b ::", "-s " + r.local},
		{"udaddy -b ::", "-s " + r.local},
		{"rstream -b :: -T v -S 1000 -I 10", "rstream -T v -S 1000 -I 10 -s " + r.local},
		{fi + " -p verbs -e msg -c", host},
		{fi + " -p verbs;ofi_rxm -e rdm -c", host},
		{fi + " -p verbs;ofi_rxd -e rdm -c -S 4096", host},
		{ucx, ucx + " -t tag_bw -n 200 -s 65536 " + host},
		{ucx, ucx + " -t ucp_get -n 200 -s 65536 " + host},
		{ucx, ucx + " -t ucp_fadd -n 50 -s 8 " + host},
		{"qperf", "qperf " + host + " -t 1 -cm1 -cp1 rc_bi_bw rc_rdma_read_lat quit"},
	} {
		program, _, _ := strings.Cut(p.server, " ")
		if !strings.HasPrefix(p.client, program) {
			p.client = p.server + " " + p.client
		}
		t.Run(p.server, func(t *testing.T) {
			server := r.start(t, &r.pair.B, p.server)
			r.client(t, server, p.client)
			server.ends(t)
		})
	}
	t.Run("rcopy", func(t *testing.T) { r.copy(t, host) })
	t.Run("run_infinitely", func(t *testing.T) { r.infinitely(t, host) })
}

// copy sends a file with rcopy, whose server runs until a signal ends it. It has no syntax for IPv6
// addresses.
func (r *suiteRig) copy(t *testing.T, host string) {
	data := bytes.Repeat([]byte("0123456789abcdef\n"), 30_000)
	if err := os.WriteFile(filepath.Join(r.dir, "in"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	server := r.start(t, &r.pair.B, "rcopy")
	r.client(t, server, "rcopy /tmp/in "+host+":/tmp/out")
	got, err := os.ReadFile(filepath.Join(r.dir, "out"))
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("the copy differs: %d bytes, %v", len(got), err)
	}
	server.interrupt()
	server.awaitEnd(t)
}

// infinitely runs perftest until a signal ends the client.
func (r *suiteRig) infinitely(t *testing.T, host string) {
	const command = "stdbuf -oL ib_write_bw -x 0 -F -D 1 --run_infinitely "
	server := r.start(t, &r.pair.B, command)
	client := r.start(t, &r.pair.A, command+host)
	const line = "\n 65536 "
	for end := time.Now().Add(patience); strings.Count(client.out.String(), line) < 3; {
		select {
		case <-client.ended: // the server did not listen yet
			client = r.start(t, &r.pair.A, command+host)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatalf("no three results within %v:\n%s\nserver:\n%s", patience, client.out, server.out)
		}
	}
	client.interrupt()
	client.awaitEnd(t)
	server.interrupt()
	server.awaitEnd(t)
}

// client runs a program at pair.A, again if the server was not ready for it.
func (r *suiteRig) client(t *testing.T, server *suiteProgram, command string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		p := r.start(t, &r.pair.A, command)
		p.awaitEnd(t)
		if p.succeeded() {
			return
		}
		select {
		case <-server.ended:
			t.Fatalf("client:\n%s\nserver:\n%s", p.out, server.out)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("no success within %v\nclient:\n%s\nserver:\n%s", patience, p.out, server.out)
		}
	}
}

// suiteProgram is a program under gorxe run.
type suiteProgram struct {
	cmd   *exec.Cmd
	out   *syncbuf.Buffer
	ended chan struct{}
}

// programScript runs the command in its arguments after the third in a chroot, as a user.
const programScript = `set -e
root=$1; tmp=$2; uid=$3; shift 3
for d in proc dev sys; do mount --rbind /$d "$root/$d"; done
mount --bind "$tmp" "$root/tmp"
unset XDG_RUNTIME_DIR TMPDIR
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
exec chroot --userspec="$uid:$uid" "$root" "$@"`

// start starts a program at one end. It is killed when the test ends.
func (r *suiteRig) start(t *testing.T, end *veth.End, command string) *suiteProgram {
	t.Helper()
	args := append([]string{"-m", "sh", "-c", programScript, "sh", r.suite.Root, r.dir,
		strconv.Itoa(r.uid), "/tmp/gorxe", "run", "--dev", end.Iface, "--datapath", "udp", "--socket",
		"none", "--"}, strings.Fields(command)...)
	p := &suiteProgram{exec.Command("unshare", args...), new(syncbuf.Buffer), make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if err := end.Do(p.cmd.Start); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // an error means that it has ended
		<-p.ended
	})
	return p
}

// succeeded reports whether a program that has ended did what it should.
func (p *suiteProgram) succeeded() bool {
	if p.cmd.ProcessState.Success() {
		return true
	}
	// libfabric 1.17 can crash while it closes a connection, after the last of all messages: a late
	// receive completion makes rxm_close_conn use the endpoint that it has just freed.
	return slices.Contains(p.cmd.Args, "verbs;ofi_rxm") &&
		strings.Contains(p.out.String(), "\n1m      10      =10 ")
}

func (p *suiteProgram) interrupt() { _ = p.cmd.Process.Signal(syscall.SIGINT) }

// awaitEnd waits until the program has ended.
func (p *suiteProgram) awaitEnd(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("%s has not ended after %v:\n%s", p.cmd.Args, patience, p.out)
	}
}

// ends waits until the program has ended with status 0.
func (p *suiteProgram) ends(t *testing.T) {
	t.Helper()
	p.awaitEnd(t)
	if !p.succeeded() {
		t.Errorf("%s: %v\n%s", p.cmd.Args, p.cmd.ProcessState, p.out)
	}
}

package guard

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/testbed"
)

func newFlags(t *testing.T, args ...string) *Flags {
	t.Helper()
	f := new(Flags)
	fs := pflag.NewFlagSet("server", pflag.ContinueOnError)
	f.Register(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFlags(t *testing.T) {
	tb, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer tb.Close()
	near := tb.Addr(0, 0).Addr()
	far := netip.MustParseAddr("198.51.100.7")
	for _, c := range []struct {
		args      string
		near, far bool
		text      string
	}{
		{"", true, false, near.String()[:strings.LastIndex(near.String(), ".")]},
		{"--allow all", true, true, "all addresses"},
		{"--allow 198.51.100.0/24", false, true, "198.51.100.0/24"},
		{"--allow 198.51.100.0/24 --allow " + near.String(), true, true, "198.51.100.0/24, "},
		{"--allow all --deny 198.51.100.7", true, false, "all addresses except 198.51.100.7/32"},
		{"--deny " + near.String(), false, false, "except " + near.String()},
	} {
		g := newFlags(t, strings.Fields(c.args)...).Guard(tb.Dev[1])
		if got := g.Permits(near); got != c.near {
			t.Errorf("%q: Permits(%v) = %v", c.args, near, got)
		}
		if got := g.Permits(far); got != c.far {
			t.Errorf("%q: Permits(%v) = %v", c.args, far, got)
		}
		if !strings.Contains(g.String(), c.text) {
			t.Errorf("%q: String() = %q, want %q", c.args, g, c.text)
		}
	}
	for bad, want := range map[string]string{
		"": "empty", " , ": "empty", "10.0.0.1/8": "write 10.0.0.0/8", "eth0": "neither",
		"all,all": "write it alone", "10.0.0.0/8, all": "write it alone",
	} {
		if err := new(prefixes).Set(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Set(%q) = %v, want an error with %q", bad, err, want)
		}
	}
}

// Without --allow, the permitted addresses follow those of the interface.
func TestGuardFollowsAddresses(t *testing.T) {
	peer := netip.MustParseAddr("192.0.2.1")
	var local []netip.Prefix
	g := New(newFlags(t).access(), func() []netip.Prefix { return local })
	if g.Permits(peer) || g.String() != "no address" {
		t.Errorf("without addresses, %v is permitted; String() = %q", peer, g)
	}
	if !g.Permits(netip.MustParseAddr("::ffff:127.0.0.1")) {
		t.Error("a loopback address is not permitted")
	}
	local = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	if !g.Permits(peer) {
		t.Errorf("%v is not permitted with %v", peer, local)
	}
	if n := count(g, "refused_access"); n != 1 {
		t.Errorf("refused_access = %d, want 1", n)
	}
	if g = nil; !g.Permits(peer) {
		t.Error("the nil Guard refuses a peer")
	}
}

func count(g *Guard, name string) uint64 {
	for n, v := range g.Counts() {
		if n == name {
			return v
		}
	}
	return 0
}

// A prefix gets a limited number of lines, and so do all prefixes together. Lines that were left
// out are counted.
func TestLogIsLimited(t *testing.T) {
	g := New(newFlags(t).access(), nil)
	lines := func(now time.Time, peer string, tries int) (n int) {
		for range tries {
			if _, ok := g.line(now, netip.MustParseAddr(peer)); ok {
				n++
			}
		}
		return n
	}
	now := time.Now()
	if n := lines(now, "192.0.2.1", 1000); n != lineBurst {
		t.Errorf("one peer got %d lines, want %d", n, lineBurst)
	}
	if n := lines(now, "192.0.2.2", 1); n != 1 {
		t.Error("another peer got no line")
	}
	total := 0
	for i := range 200 {
		total += lines(now, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}).String(), 10)
	}
	if total > totalBurst {
		t.Errorf("all peers got %d lines, want at most %d", total, totalBurst)
	}
	if n := count(g, "log_lines_hidden"); n < 2900 {
		t.Errorf("log_lines_hidden = %d, want about 3000", n)
	}
	var logged error
	g.lines = newLines(1)
	g.Limit(func(_ netip.AddrPort, err error) { logged = err })(netip.AddrPort{}, errors.New("bad"))
	if logged == nil || !strings.HasPrefix(logged.Error(), "bad (") {
		t.Errorf("the next line is %v, want the number of lines that were left out", logged)
	}
}

package limit

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestPrefix(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.7":            "192.0.2.7/32",
		"::ffff:192.0.2.7":     "192.0.2.7/32",
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64",
		"fe80::1%eth1":         "fe80::/64",
	} {
		if got := Prefix(addr(in)).String(); got != want {
			t.Errorf("Prefix(%s) = %s, want %s", in, got, want)
		}
	}
	if Prefix(netip.Addr{}).IsValid() {
		t.Error("the zero Addr has a valid Prefix")
	}
}

// With equal numbers, several prefixes have the most.
func TestMost(t *testing.T) {
	list := []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1"), addr("192.0.2.2"),
		addr("2001:db8::2"), addr("192.0.2.2")}
	most := Most(list, Prefix)
	for i, want := range []bool{false, true, true, true, true} {
		if most(list[i]) != want {
			t.Errorf("most(%v) = %v", list[i], !want)
		}
	}
}

func TestAccess(t *testing.T) {
	list := func(s string) []netip.Prefix {
		p, err := ParsePrefixes(s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		allow, deny, addr string
		want              bool
	}{
		{"", "", "192.0.2.7", true},
		{"192.0.2.0/24", "", "192.0.2.7", true},
		{"192.0.2.0/24", "", "::ffff:192.0.2.7", true},
		{"192.0.2.0/24", "", "192.0.3.7", false},
		{"192.0.2.0/24", "", "2001:db8::1", false},
		{"192.0.2.0/24, 2001:db8::1", "192.0.2.7", "192.0.2.7", false},
		{"192.0.2.0/24, 2001:db8::1", "192.0.2.7", "2001:db8::1", true},
		{"", "fe80::/10", "fe80::1%eth1", false},
		{"", "fe80::/10", "192.0.2.7", true},
		{"::ffff:192.0.2.0/120", "", "192.0.2.9", true},
	} {
		a := Access{Allow: list(c.allow), Deny: list(c.deny)}
		if got := a.Permits(addr(c.addr)); got != c.want {
			t.Errorf("allow %q deny %q: Permits(%s) = %v", c.allow, c.deny, c.addr, got)
		}
	}
}

func TestAccessChecked(t *testing.T) {
	mapped := netip.PrefixFrom(netip.MustParseAddr("::ffff:192.0.2.0"), 120)
	a := Access{Deny: []netip.Prefix{mapped}}
	checked, err := a.Checked()
	if err != nil || checked.Permits(addr("192.0.2.9")) || !checked.Permits(addr("192.0.3.9")) {
		t.Errorf("Checked() = %v, %v", checked, err)
	}
	for _, p := range []netip.Prefix{{}, netip.PrefixFrom(mapped.Addr(), 90)} {
		for _, bad := range []Access{{Allow: []netip.Prefix{p}}, {Deny: []netip.Prefix{p}}} {
			if _, err := bad.Checked(); err == nil {
				t.Errorf("%v: Checked() returns no error", bad)
			}
		}
	}
}

func TestParsePrefixesRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.7/24":      "write 192.0.2.0/24",
		"eth0":              "neither an address nor a prefix",
		"192.0.2.0/24,x":    `"x"`,
		"192.0.2.0/33":      "neither",
		"fe80::1%eth1":      "neither",
		"::ffff:0.0.0.0/90": "IPv4-mapped",
	} {
		if _, err := ParsePrefixes(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParsePrefixes(%q) = %v, want %q", in, err, want)
		}
	}
}

func TestShares(t *testing.T) {
	s := NewShares(3, 5)
	a, b, c := addr("192.0.2.1"), addr("2001:db8::1"), addr("2001:db8::2")
	if !s.Take(a, 3) || s.Take(a, 1) {
		t.Error("the limit per prefix is not 3")
	}
	if !s.Take(b, 1) || !s.Take(c, 1) || s.Take(c, 1) {
		t.Error("the limit in total is not 5")
	}
	if p, total := s.Used(c); p != 2 || total != 5 {
		t.Errorf("Used = %d, %d", p, total)
	}
	s.Return(a, 2)
	if !s.Take(b, 1) || s.Take(c, 1) {
		t.Error("two addresses of a /64 do not share its limit")
	}
	s.Return(a, 1)
	s.Return(b, 3)
	if _, total := s.Used(a); total != 0 || len(s.by) != 0 {
		t.Errorf("%d units, %d prefixes left", total, len(s.by))
	}
	if s.Take(a, 1<<62) || !NewShares(0, 0).Take(a, 1<<62) {
		t.Error("a huge number of units")
	}
}

// One prefix gets half of the units, further ones share the rest.
func TestTakeFair(t *testing.T) {
	s := NewShares(0, 8)
	for _, c := range []struct {
		peer string
		want int
	}{{"192.0.2.1", 4}, {"2001:db8::1", 2}, {"2001:db8::2", 0}, {"192.0.2.3", 1},
		{"192.0.2.1", 0}, {"192.0.2.4", 1}, {"192.0.2.5", 0}} {
		got := 0
		for s.TakeFair(addr(c.peer), 1) {
			got++
		}
		if got != c.want {
			t.Errorf("%s got %d units, want %d", c.peer, got, c.want)
		}
	}
	s = NewShares(0, 1000)
	for _, c := range []struct {
		peer string
		n    int64
		want bool
	}{{"192.0.2.1", 501, false}, {"192.0.2.1", 500, true}, {"192.0.2.1", 1, false},
		{"192.0.2.2", 500, false}, {"192.0.2.2", 250, true}, {"192.0.2.3", 1 << 62, false}} {
		if got := s.TakeFair(addr(c.peer), c.n); got != c.want {
			t.Errorf("TakeFair(%s, %d) = %v, want %v", c.peer, c.n, got, c.want)
		}
	}
	if !NewShares(0, 1).TakeFair(addr("192.0.2.1"), 1) {
		t.Error("the only unit cannot be taken")
	}
	if s := NewShares(2, 8); !s.TakeFair(addr("::1"), 2) || s.TakeFair(addr("::1"), 1) {
		t.Error("TakeFair ignores the limit per prefix")
	}
	if !NewShares(0, 0).TakeFair(addr("::1"), 1<<62) {
		t.Error("TakeFair limits without a limit")
	}
}

func TestRate(t *testing.T) {
	r := NewRate(RateConfig{PerPrefix: Budget{10, 5}, Total: Budget{1000, 100}, Seed: 1})
	now := int64(time.Hour)
	allowed := func(a netip.Addr, tries int) (n int) {
		for range tries {
			if r.Allow(now, a, 1) {
				n++
			}
		}
		return n
	}
	a, b := addr("192.0.2.1"), addr("192.0.2.2")
	if n := allowed(a, 20); n != 5 {
		t.Errorf("a burst of %d, want 5", n)
	}
	if n := allowed(b, 20); n != 5 {
		t.Errorf("another prefix got %d, want 5", n)
	}
	now += int64(300 * time.Millisecond)
	if n := allowed(a, 20); n != 3 {
		t.Errorf("%d after 300 ms, want 3", n)
	}
	if r.Allow(now+int64(time.Hour), a, 6) || r.Allow(now, a, 1<<62) {
		t.Error("more units than the burst were allowed")
	}
	now += int64(time.Hour)
	total := 0
	for i := range 1000 {
		total += allowed(addr(fmt.Sprintf("2001:db8:0:%x::1", i)), 10)
	}
	if total != 100 {
		t.Errorf("1000 prefixes got %d, want 100", total)
	}
	free := NewRate(RateConfig{})
	if !free.Allow(0, a, 1<<62) {
		t.Error("the zero budget limits")
	}
}

func TestRateDoesNotAllocate(t *testing.T) {
	r := NewRate(RateConfig{PerPrefix: Budget{10, 5}, Total: Budget{1000, 100}})
	var raw [16]byte
	if n := testing.AllocsPerRun(1000, func() {
		raw[5]++
		r.Allow(0, netip.AddrFrom16(raw), 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

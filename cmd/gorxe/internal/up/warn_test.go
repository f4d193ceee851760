package up

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// A growing counter causes one warning per interval, with the number of packets since the last one.
func TestWarnings(t *testing.T) {
	var w warner
	var c roce.Counters
	var out bytes.Buffer
	show := &printer{diag: &out}
	now := time.Unix(1000, 0)
	check := func(want ...string) {
		t.Helper()
		out.Reset()
		w.check(now, &c, show.warning)
		if got := out.String(); got != strings.Join(want, "") {
			t.Errorf("printed %q, want %q", got, want)
		}
	}
	partition := func(n string) string {
		return "packets of another partition: " + n + " new (drop_pkey)\n"
	}
	check()
	c.DropPKey = 3
	check(partition("3"))
	c.DropPKey = 10
	now = now.Add(warnInterval / 2)
	check()
	c.DropQKey = 1
	check("datagrams with a wrong Q_Key: 1 new (drop_qkey)\n")
	now = now.Add(warnInterval / 2)
	check(partition("7"))
	now = now.Add(warnInterval)
	check()

	show = &printer{out: &out, json: true}
	c.DropPKey++
	check(`{"event":"warning","message":"packets of another partition: 1 new (drop_pkey)",` +
		`"counter":"drop_pkey","count":1}` + "\n")
}

// Every warning names a counter, and docs/counters.md marks those counters.
func TestWarningsNameCounters(t *testing.T) {
	var names, counters []string
	var c roce.Counters
	for name := range c.All() {
		counters = append(counters, name)
	}
	for _, k := range warnings {
		names = append(names, k.counter)
		if !slices.Contains(counters, k.counter) {
			t.Errorf("there is no counter %q", k.counter)
		}
	}
	text, err := os.ReadFile("../../../../docs/counters.md")
	if err != nil {
		t.Fatal(err)
	}
	var marked []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(.*)` ! \\|").FindAllSubmatch(text, -1) {
		marked = append(marked, string(m[1]))
	}
	slices.Sort(names)
	slices.Sort(marked)
	if !slices.Equal(names, marked) {
		t.Errorf("warnings about %q, marked in docs/counters.md: %q", names, marked)
	}
}

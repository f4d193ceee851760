package roce

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/qp"
)

// checkCounterNames checks that each counter of the engine has one name, and that names are unique.
func checkCounterNames(t *testing.T) {
	t.Helper()
	typ := reflect.TypeFor[qp.Counters]()
	for i := range typ.NumField() {
		var c Counters
		reflect.ValueOf(&c.EngineCounters).Elem().Field(i).SetUint(7)
		found := 0
		for _, v := range c.All() {
			if v == 7 {
				found++
			}
		}
		if found != 1 {
			t.Errorf("counter %s has %d names", typ.Field(i).Name, found)
		}
	}
	seen := map[string]bool{}
	var c Counters
	for n := range c.All() {
		if seen[n] {
			t.Errorf("two counters are named %s", n)
		}
		seen[n] = true
	}
}

// docs/counters.md lists every counter, and no others.
func TestCountersAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/counters.md")
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	var c Counters
	for n := range c.All() {
		missing[n] = true
	}
	known := maps.Clone(missing)
	ours := true
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "## ") { // the servers have counters of their own
			ours = !strings.HasPrefix(line, "## Peers of the servers")
		}
		cells := strings.Split(line, "|")
		if len(cells) < 3 || !ours {
			continue
		}
		for _, m := range regexp.MustCompile("`([a-zA-Z_]+)`").FindAllStringSubmatch(cells[1], -1) {
			names := []string{m[1]}
			if base, pattern := strings.CutSuffix(m[1], "MSG"); pattern {
				names = nil
				for n := range c.CM.All() {
					if strings.HasPrefix("cm_"+n, base) {
						names = append(names, "cm_"+n)
					}
				}
			}
			if name, each := strings.CutPrefix(m[1], "classN_"); each {
				names = nil
				for i := range NumClasses {
					names = append(names, fmt.Sprintf("class%d_%s", i, name))
				}
			}
			for _, n := range names {
				if !known[n] {
					t.Errorf("docs/counters.md describes %s, which is not a counter", n)
				}
				delete(missing, n)
			}
		}
	}
	for n := range missing {
		t.Errorf("docs/counters.md does not describe %s: add it to the table", n)
	}
}

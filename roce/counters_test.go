package roce

import (
	"reflect"
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

package main

import (
	"strings"
	"testing"
	"time"
)

// go test -json for a scenario that passes, one that fails and a test that skips.
const events = `{"Action":"start","Package":"p"}
{"Action":"run","Test":"TestVerbs"}
{"Action":"run","Test":"TestVerbs/RC_READ"}
{"Action":"run","Test":"TestVerbs/RC_READ/active"}
{"Action":"attr","Test":"TestVerbs/RC_READ/active","Key":"scenario","Value":"RC READ"}
{"Action":"attr","Test":"TestVerbs/RC_READ/active","Key":"role","Value":"active"}
{"Action":"attr","Test":"TestVerbs/RC_READ/active","Key":"ip","Value":"IPv6"}
{"Action":"attr","Test":"TestVerbs/RC_READ/active","Key":"mtu","Value":"4096"}
{"Action":"pass","Test":"TestVerbs/RC_READ/active","Elapsed":0.31}
{"Action":"run","Test":"TestVerbs/RC_READ/passive"}
{"Action":"attr","Test":"TestVerbs/RC_READ/passive","Key":"scenario","Value":"RC READ"}
{"Action":"attr","Test":"TestVerbs/RC_READ/passive","Key":"pcap","Value":"x.pcap"}
{"Action":"output","Test":"TestVerbs/RC_READ/passive","Output":"=== RUN   TestVerbs/RC_READ/passive\n"}
{"Action":"output","Test":"TestVerbs/RC_READ/passive","Output":"    verbs_test.go:33: passive: QP in RTS, want ERR\n"}
{"Action":"fail","Test":"TestVerbs/RC_READ/passive","Elapsed":1.5}
{"Action":"fail","Test":"TestVerbs/RC_READ","Elapsed":1.5}
{"Action":"fail","Test":"TestVerbs","Elapsed":1.5}
{"Action":"run","Test":"TestTools"}
{"Action":"output","Test":"TestTools","Output":"    rig_test.go:9: this host lacks gcc\n"}
{"Action":"skip","Test":"TestTools","Elapsed":0}
`

func TestTable(t *testing.T) {
	tab := newTable()
	for l := range strings.Lines(events) {
		tab.take([]byte(strings.TrimSpace(l)))
	}
	var b strings.Builder
	if err := tab.write(&b, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	want := `scenario  gorxe   IP    path MTU  result  time
RC READ   active  IPv6  4096      ok      0.3 s
RC READ                           FAIL    1.5 s

FAIL TestVerbs/RC_READ/passive
  passive: QP in RTS, want ERR
  x.pcap
SKIP TestTools: this host lacks gcc

1 passed, 1 failed, 0 skipped in 2s
`
	if b.String() != want || tab.failed() != 1 {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// What a subtest without a scenario prints belongs to the scenario around it.
func TestFailureInSubtest(t *testing.T) {
	tab := newTable()
	for l := range strings.Lines(`{"Action":"run","Test":"T/user"}
{"Action":"attr","Test":"T/user","Key":"scenario","Value":"user"}
{"Action":"run","Test":"T/user/rping"}
{"Action":"output","Test":"T/user/rping","Output":"    a_test.go:7: client:\n"}
{"Action":"output","Test":"T/user/rping","Output":"        it failed\n"}
{"Action":"fail","Test":"T/user/rping"}
{"Action":"fail","Test":"T/user"}
`) {
		tab.take([]byte(strings.TrimSpace(l)))
	}
	if want := "rping:\n  client:\n  it failed"; len(tab.rows) != 1 || tab.rows[0].why != want {
		t.Errorf("%d rows, reason %q", len(tab.rows), tab.rows[0].why)
	}
}

// A scenario that started and never ends, because the run was killed, has failed.
func TestAbandoned(t *testing.T) {
	tab := newTable()
	for l := range strings.Lines(events) {
		if !strings.Contains(l, "Elapsed") {
			tab.take([]byte(strings.TrimSpace(l)))
		}
	}
	if tab.failed() != 0 {
		t.Fatal("a scenario failed that has not ended")
	}
	tab.abandon()
	if len(tab.rows) != 2 || tab.failed() != 2 ||
		!strings.Contains(tab.rows[0].why, "did not end") {
		t.Errorf("%d rows, %d failed", len(tab.rows), tab.failed())
	}
}

// A test binary that does not build reports lines that are not events. They must not be lost.
func TestForeignLinesAreLogged(t *testing.T) {
	if got := newTable().take([]byte("# build failed")); got != "# build failed\n" {
		t.Errorf("%q", got)
	}
	if got := newTable().take([]byte(`{"Action":"build-output","Output":"x.go:1: no such thing\n"}`)); got != "interop: x.go:1: no such thing\n" {
		t.Errorf("%q", got)
	}
}

package sysfs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func newTree(t *testing.T) (*Tree, *Device) {
	t.Helper()
	d := &Device{Name: "rxe0", Interface: "eth0", Up: true, GUID: [8]byte{0x02, 0xff, 7: 9},
		GIDs: []GID{{1, [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}}}}
	tree, err := New(t.TempDir(), d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	return tree, d
}

// read returns the file for a path of a program.
func read(t *testing.T, tree *Tree, name string) string {
	t.Helper()
	e, ok := tree.Find(name)
	if !ok {
		t.Fatalf("Find(%s) finds nothing", name)
	}
	b, err := os.ReadFile(filepath.Join(tree.Root(), e.Path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A counter has its current value after UpdateCounters.
func TestCounters(t *testing.T) {
	tree, d := newTree(t)
	sent := uint64(5)
	d.Counters = func(yield func(string, uint64) bool) { yield("sent_pkts", sent) }
	const name = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
	for _, update := range []func(*Device) error{tree.Update, tree.UpdateCounters} {
		if err := update(d); err != nil {
			t.Fatal(err)
		}
		if got, want := read(t, tree, name), fmt.Sprintln(sent); got != want {
			t.Errorf("sent_pkts = %q, want %q", got, want)
		}
		sent = 1 << 40
	}
	if e, _ := tree.Find(name); !e.Counter() {
		t.Error("the file is not known as a counter")
	}
	if e, _ := tree.Find("/sys/class/infiniband/rxe0/ports/1/state"); e.Counter() {
		t.Error("another file is known as a counter")
	}
}

func TestFiles(t *testing.T) {
	tree, d := newTree(t)
	port := "/sys/class/infiniband/rxe0/ports/1/"
	for name, want := range map[string]string{
		"/sys/class/infiniband_verbs/uverbs0/ibdev":       "rxe0\n",
		"/sys/class/infiniband_verbs/uverbs0/dev":         "231:192\n",
		"/sys/class/infiniband_verbs/uverbs0/abi_version": "2\n",
		"/sys/class/infiniband/rxe0/node_guid":            "02ff:0000:0000:0009\n",
		"/sys/class/infiniband/../infiniband/rxe0/parent": "eth0\n",
		port + "gids/0": "0000:0000:0000:0000:0000:0000:0000:0000\n",
		port + "gids/1": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
		port + "state":  "4: ACTIVE\n",
		tree.Root() + "/sys/class/infiniband/rxe0/parent": "eth0\n",
	} {
		if got := read(t, tree, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	d.Up, d.GIDs = false, nil
	if err := tree.Update(d); err != nil {
		t.Fatal(err)
	}
	if got := read(t, tree, port+"state"); got != "1: DOWN\n" {
		t.Errorf("state = %q after the link went down", got)
	}
}

func TestFind(t *testing.T) {
	tree, _ := newTree(t)
	for name, want := range map[string]Entry{
		"/dev/infiniband":                       {"dev/infiniband", 0},
		"/dev/infiniband/":                      {"dev/infiniband", 0},
		"/dev//infiniband/uverbs0":              {"dev/infiniband/uverbs0", UverbsNumber},
		"/dev/char/231:192":                     {"dev/char/231:192", UverbsNumber},
		"/dev/infiniband/rdma_cm":               {"dev/infiniband/rdma_cm", CMNumber},
		"/dev/infiniband/..":                    {},
		"/dev/infiniband/../../etc/passwd":      {},
		tree.Root() + "/dev/infiniband/uverbs0": {"dev/infiniband/uverbs0", UverbsNumber},
	} {
		if got, ok := tree.Find(name); !ok || got != want {
			t.Errorf("Find(%s) = %v, %v, want %v", name, got, ok, want)
		}
	}
	for _, name := range []string{"/", "/dev", "/dev/infinibandx", "/sys/class", "/dev/char/1:3",
		"/home/sys/class/infiniband", "/dev/./infinibandx/../null"} {
		if e, ok := tree.Find(name); ok {
			t.Errorf("Find(%s) = %v, want nothing in the tree", name, e)
		}
	}
}

func TestEqual(t *testing.T) {
	_, d := newTree(t)
	e := *d
	if !d.Equal(&e) {
		t.Error("a copy is not equal")
	}
	e.GIDs = nil
	if d.Equal(&e) {
		t.Error("a device with other GIDs is equal")
	}
}

// New removes trees of killed processes, and no others.
func TestStale(t *testing.T) {
	dir := t.TempDir()
	first, err := New(dir, new(Device))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	age := func(name string) string {
		t.Helper()
		old := time.Now().Add(-2 * staleAge)
		if err := os.Chtimes(name, old, old); err != nil {
			t.Fatal(err)
		}
		return name
	}
	mkdir := func(name string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(name, "dev"), 0o700); err != nil {
			t.Fatal(err)
		}
		return name
	}
	running, other := age(first.Root()), age(mkdir("other"))
	recent, stale := mkdir(treePrefix+"1"), age(mkdir(treePrefix+"2"))
	second, err := New(dir, new(Device))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	for name, want := range map[string]bool{running: true, other: true, recent: true, stale: false,
		second.Root(): true} {
		if _, err := os.Stat(name); (err == nil) != want {
			t.Errorf("Stat(%s) = %v, want it to exist: %v", name, err, want)
		}
	}
}

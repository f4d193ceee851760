package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// member is an entry of an archive.
type member struct {
	name, content string
	mode          uint64
}

// readArchive reads the "newc" format (cpio(5)): 13 fields of 8 hexadecimal digits after the magic.
func readArchive(t *testing.T, b []byte) (out []member, rest []byte) {
	t.Helper()
	pos := 0
	align := func() { pos = (pos + 3) &^ 3 }
	for {
		h := string(b[pos : pos+110])
		field := func(i int) int {
			v, err := strconv.ParseUint(h[6+8*i:14+8*i], 16, 32)
			if err != nil {
				t.Fatalf("header %q: %v", h, err)
			}
			return int(v)
		}
		if h[:6] != "070701" {
			t.Fatalf("at %d: magic %q", pos, h[:6])
		}
		nameLen, size := field(11), field(6)
		pos += 110
		name := strings.TrimSuffix(string(b[pos:pos+nameLen]), "\x00")
		pos += nameLen
		align()
		content := string(b[pos : pos+size])
		pos += size
		align()
		if name == "TRAILER!!!" {
			return out, b[pos:]
		}
		out = append(out, member{name, content, uint64(field(1))})
	}
}

func TestArchive(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	a := newArchive(&b)
	a.file("usr/bin/tool", file)
	a.bytes("etc/x", 0o644, []byte("abc"))
	a.link("bin/sh", "/usr/bin/dash")
	a.bytes("etc/x", 0o600, []byte("the second one is left out"))
	a.dir("etc")
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	got, rest := readArchive(t, b.Bytes())
	want := []member{
		{"usr", "", 0o040755}, {"usr/bin", "", 0o040755}, {"usr/bin/tool", "#!/bin/sh\n", 0o100755},
		{"etc", "", 0o040755}, {"etc/x", "abc", 0o100644}, {"bin", "", 0o040755},
		{"bin/sh", "/usr/bin/dash", 0o120777},
	}
	if !slices.Equal(got, want) || len(rest) > 0 || b.Len()%4 != 0 {
		t.Errorf("%+v and %d bytes more", got, len(rest))
	}
}

func TestArchiveReportsMissingFiles(t *testing.T) {
	a := newArchive(io.Discard)
	a.file("init", "/nowhere/at/all")
	if err := a.close(); err == nil {
		t.Error("a file that is not there went into the archive")
	}
}

func TestModuleOrder(t *testing.T) {
	m := &moduleSet{
		paths: map[string]string{}, builtin: map[string]bool{"core": true},
		info: map[string]moduleInfo{
			"rdma_rxe":   {depends: []string{"ib_core", "udp_tunnel", "core"}},
			"ib_core":    {depends: []string{"core"}},
			"udp_tunnel": {}, "ib_uverbs": {depends: []string{"ib_core"}},
		},
	}
	got, err := m.order([]string{"rdma_rxe", "ib_uverbs", "rdma_rxe"})
	if want := []string{"ib_core", "udp_tunnel", "rdma_rxe", "ib_uverbs"}; err != nil ||
		!slices.Equal(got, want) {
		t.Errorf("%q (%v), want %q", got, err, want)
	}
	if _, err := m.order([]string{"no_such_module"}); err == nil ||
		!strings.Contains(err.Error(), "no_such_module") {
		t.Errorf("a module that is not there: %v", err)
	}
}

func TestModuleInfo(t *testing.T) {
	i := parseModuleInfo([]byte("license=GPL\x00depends=ib-core,udp_tunnel\x00alias=rdma-link-rxe\x00alias=x\x00"))
	if !slices.Equal(i.depends, []string{"ib_core", "udp_tunnel"}) ||
		!slices.Equal(i.aliases, []string{"rdma-link-rxe", "x"}) {
		t.Errorf("%+v", i)
	}
	if i := parseModuleInfo([]byte("depends=\x00")); len(i.depends) > 0 {
		t.Errorf("a module without dependencies: %+v", i)
	}
	if got := moduleName("kernel/drivers/net/virtio-net.ko.xz"); got != "virtio_net" {
		t.Error(got)
	}
}

// Links of an unpacked package refer to its own tree, never to this host's.
func TestSysrootStaysInside(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"lib/" + arch, "lib64"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	real := filepath.Join(root, "lib", arch, "ld-2.36.so")
	if err := os.WriteFile(real, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{
		"lib64/ld-linux.so.2": "/lib/" + arch + "/ld.so", "lib/" + arch + "/ld.so": "ld-2.36.so",
		"lib64/up":   "../../../../etc/passwd",
		"lib64/loop": "loop",
	} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	s := sysroot(root)
	if got, err := s.find("ld-linux.so.2", libraryDirs); err != nil || got != real {
		t.Errorf("%s (%v), want %s", got, err, real)
	}
	for _, bad := range []string{"lib64/up", "lib64/loop", "lib64/nothing"} {
		if got, err := s.resolve(bad); err == nil {
			t.Errorf("%s leads to %s", bad, got)
		}
	}
}

// bzImage lays out a kernel as the boot protocol says: one sector of boot code, three of setup
// code, and protected-mode code with the packed kernel at 100, followed by its length.
func bzImage(packed []byte) []byte {
	image := make([]byte, 4*sectorSize+100)
	copy(image[1000:], "\xfd7zXZ\x00 code in which the magic stands by chance")
	image[bootSectors] = 3
	binary.LittleEndian.PutUint32(image[bootPayload:], 100)
	binary.LittleEndian.PutUint32(image[bootPayloadLen:], uint32(len(packed)+4))
	return slices.Concat(image, packed, []byte("\x01\x02\x03\x04 and more code"))
}

func TestKernelInside(t *testing.T) {
	dir := t.TempDir()
	elf := append([]byte("\x7fELF"), bytes.Repeat([]byte("kernel "), 1000)...)
	check := func(name string, image, want []byte) {
		t.Helper()
		in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
		if err := os.WriteFile(in, image, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := unzipKernel(context.Background(), in, out); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes (%v), want %d", name, len(got), err, len(want))
		}
	}
	for _, u := range unpackers {
		if _, err := exec.LookPath(u.argv[0]); err != nil {
			continue // such a kernel stays as it is
		}
		cmd := exec.Command(u.argv[0], "-c")
		cmd.Stdin = bytes.NewReader(elf)
		packed, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		check(u.argv[0], bzImage(packed), elf)
		torn := bzImage(packed[:len(packed)/2])
		check(u.argv[0]+", torn", torn, torn)
	}
	other := bzImage([]byte("another compression"))
	check("another compression", other, other)
	long := bzImage(nil)
	binary.LittleEndian.PutUint32(long[bootPayload:], 1<<32-1)
	for name, image := range map[string][]byte{"short": []byte("bzImage"),
		"payload outside": long} {
		check(name, image, image)
	}
}

// The guest gets Python without its own tests, wherever the folder is.
func TestGuestFiles(t *testing.T) {
	root := filepath.Join(t.TempDir(), "test", "suite")
	want := []string{"usr/lib/python3/os.py", SuiteTests + "/test_qp.py"}
	for _, name := range append(want, "usr/lib/python3/test/test_os.py", "usr/lib/other") {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := guestFiles(root)
	if got := slices.Sorted(maps.Keys(files)); err != nil || !slices.Equal(got, want) {
		t.Errorf("guestFiles() = %q, %v; want %q", got, err, want)
	}
}

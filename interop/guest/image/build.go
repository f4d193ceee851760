package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Image is what a guest boots from.
type Image struct {
	Kernel   string // an ELF file, which qemu starts without a BIOS, or a compressed kernel
	Initrd   string
	Release  string // of the kernel, as uname reports it
	Packages string // a file that lists the packages inside, with their versions
}

// Options configure the build.
type Options struct {
	Debian string // release of the guest (Trixie); empty: this host's
	Module string // folder of the Go module, from which the agent is built
	// C sources: each NAME.c becomes /usr/bin/NAME and may include its neighbors; nil: none
	Peers   fs.FS
	Log     func(string)      // progress, one line at a time; may be nil
	Refresh bool              // build again with the packages that the archive has today
	Files   map[string]string // further files: path in the guest -> path here
}

// Get returns the image for this recipe, agent and peers, and builds what is not cached. Concurrent
// builders wait for each other.
func Get(ctx context.Context, o Options) (*Image, error) {
	if o.Log == nil {
		o.Log = func(string) {}
	}
	s, err := recipe(o.Debian)
	if err != nil {
		return nil, err
	}
	dir, unlock, err := cacheDir()
	if err != nil {
		return nil, err
	}
	defer unlock()
	base := filepath.Join(dir, s.hash())
	if o.Refresh {
		if err := os.RemoveAll(base); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(base); errors.Is(err, fs.ErrNotExist) {
		if err := buildBase(ctx, dir, base, s, &o); err != nil {
			return nil, err
		}
	}
	return overlay(ctx, base, &o)
}

// cacheDir returns the folder of images and locks it.
func cacheDir() (dir string, unlock func(), err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", nil, fmt.Errorf("%w: no folder for guest images: set HOME or XDG_CACHE_HOME (%w)",
			ErrHost, err)
	}
	dir = filepath.Join(cache, "gorxe-interop")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	unlock, err = lock(filepath.Join(dir, "lock"))
	return dir, unlock, err
}

func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { f.Close() }, nil
}

// The files of a base.
const (
	kernelFile   = "vmlinux"
	archiveFile  = "base.cpio"
	releaseFile  = "release"
	packagesFile = "packages.txt"
	sysrootDir   = "sysroot" // headers and libraries, for compiling the peers
)

// buildBase makes kernel and archive from Debian's packages in a folder that is renamed when it is
// complete.
func buildBase(ctx context.Context, dir, base string, s *spec, o *Options) error {
	work, err := os.MkdirTemp(dir, "build-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	o.Log("downloading Debian packages for the guest (once)")
	debs, kernel, err := fetch(ctx, work, s)
	if err != nil {
		return err
	}
	out := filepath.Join(work, "out")
	root, kroot := filepath.Join(out, sysrootDir), filepath.Join(work, "kroot")
	o.Log("unpacking Debian packages")
	names, err := unpack(ctx, debs, root)
	if err != nil {
		return err
	}
	more, err := unpack(ctx, kernel, kroot)
	if err != nil {
		return err
	}
	list := strings.Join(append(names, more...), "\n") + "\n"
	if err := os.WriteFile(filepath.Join(out, packagesFile), []byte(list), 0o644); err != nil {
		return err
	}
	o.Log("packing the guest's initramfs")
	if err := packBase(ctx, out, kroot, sysroot(root), s); err != nil {
		return err
	}
	if err := prune(root); err != nil {
		return err
	}
	return os.Rename(out, base)
}

func packBase(ctx context.Context, out, kroot string, root sysroot, s *spec) error {
	dirs, err := filepath.Glob(filepath.Join(kroot, "*lib/modules/*"))
	if usr, _ := filepath.Glob(filepath.Join(kroot, "usr/lib/modules/*")); len(dirs) == 0 {
		dirs = usr
	}
	if err != nil || len(dirs) != 1 {
		return fmt.Errorf("image: %d kernels in the kernel's package, expected 1 (%v)", len(dirs),
			err)
	}
	release := filepath.Base(dirs[0])
	if err := os.WriteFile(filepath.Join(out, releaseFile), []byte(release), 0o644); err != nil {
		return err
	}
	if err := unzipKernel(ctx, filepath.Join(kroot, "boot/vmlinuz-"+release),
		filepath.Join(out, kernelFile)); err != nil {
		return err
	}
	mods, err := newModuleSet(dirs[0])
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(out, archiveFile))
	if err != nil {
		return err
	}
	defer f.Close()
	a := newArchive(f)
	if err := fill(ctx, a, root, s); err != nil {
		return err
	}
	if err := mods.add(a, release, s.boot, s.modules); err != nil {
		return err
	}
	return errors.Join(a.close(), f.Close())
}

// fill adds user space to the archive.
func fill(ctx context.Context, a *archive, root sysroot, s *spec) error {
	for _, d := range []string{"dev", "proc", "sys", "run", "tmp", "root", "var", "usr/sbin",
		"sbin", "lib64"} {
		a.dir(d)
	}
	a.link("var/run", "/run")
	for name, text := range systemFiles {
		a.bytes(name, 0o644, []byte(text))
	}
	c := &collector{from: root, to: a, libs: map[string]bool{}}
	for _, p := range s.programs {
		if err := c.program(p); err != nil {
			return err
		}
	}
	for _, l := range s.extra {
		if err := c.loaded(l); err != nil {
			return err
		}
	}
	for _, d := range s.data {
		if err := c.data(d); err != nil {
			return err
		}
	}
	return busybox(ctx, a, root)
}

// busybox is the guest's shell and provides every small tool that no package above brought.
func busybox(ctx context.Context, a *archive, root sysroot) error {
	path, err := root.find("busybox", programDirs)
	if err != nil {
		return err
	}
	a.file("bin/busybox", path)
	applets, err := exec.CommandContext(ctx, path, "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	// Not busybox's shell, which prefers its applets to programs in PATH.
	a.link("bin/sh", "/usr/bin/dash")
	for _, name := range strings.Fields(string(applets)) {
		if a.made["usr/bin/"+name] || name == "busybox" {
			continue
		}
		a.link("bin/"+name, "/bin/busybox")
	}
	a.link("sbin/modprobe", "/bin/busybox") // where the kernel looks for it
	return nil
}

// prune keeps of the unpacked packages what compiling the peers needs.
func prune(root string) error {
	for _, d := range []string{"usr/share", "usr/bin", "usr/sbin", "bin", "sbin", "etc", "var"} {
		if err := os.RemoveAll(filepath.Join(root, d)); err != nil {
			return err
		}
	}
	return nil
}

// overlay adds the agent, the peers and further files to a base.
func overlay(ctx context.Context, base string, o *Options) (*Image, error) {
	tmp, err := os.MkdirTemp(base, "overlay-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	files := map[string]string{"init": filepath.Join(tmp, "agent")}
	if err := buildAgent(ctx, o.Module, files["init"]); err != nil {
		return nil, err
	}
	for name, from := range o.Files {
		files[name] = from
	}
	if o.Peers != nil {
		peers, err := buildPeers(ctx, base, o.Peers)
		if err != nil {
			return nil, err
		}
		maps.Copy(files, peers)
	}
	release, err := os.ReadFile(filepath.Join(base, releaseFile))
	if err != nil {
		return nil, err
	}
	img := &Image{Kernel: filepath.Join(base, kernelFile), Release: string(release),
		Packages: filepath.Join(base, packagesFile)}
	img.Initrd, err = join(base, tmp, files)
	return img, err
}

// buildAgent compiles the agent. The go command's cache makes it fast the second time.
func buildAgent(ctx context.Context, module, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags",
		"-s -w", "-o", out, "./interop/guest/agent")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("image: build the agent: %w\n%s", err, tail(b))
	}
	return nil
}

// initrdAge is how long an unused initramfs is kept.
const initrdAge = 24 * time.Hour

// join makes the initramfs: the base's archive and a second one with files. Its name is a hash of
// the contents.
func join(base, tmp string, files map[string]string) (string, error) {
	var second bytes.Buffer
	a := newArchive(&second)
	for _, name := range sortedKeys(files) {
		a.file(name, files[name])
	}
	if err := a.close(); err != nil {
		return "", err
	}
	sum := sha256.Sum256(second.Bytes())
	path := filepath.Join(base, "initrd-"+hex.EncodeToString(sum[:8]))
	now := time.Now()
	if err := os.Chtimes(path, now, now); err == nil {
		return path, nil // there and in use
	}
	old, err := filepath.Glob(filepath.Join(base, "initrd-*"))
	if err != nil {
		return "", err
	}
	if err := concat(filepath.Join(tmp, "initrd"), filepath.Join(base, archiveFile),
		second.Bytes()); err != nil {
		return "", err
	}
	for _, p := range old {
		// Another run may be about to boot from a recent one.
		if st, err := os.Stat(p); err == nil && now.Sub(st.ModTime()) > initrdAge {
			_ = os.Remove(p)
		}
	}
	return path, os.Rename(filepath.Join(tmp, "initrd"), path)
}

func concat(to, first string, second []byte) error {
	in, err := os.Open(first)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	if _, err := out.Write(second); err != nil {
		return errors.Join(err, out.Close())
	}
	return out.Close()
}

package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// ErrHost means that this host cannot build or boot guests.
var ErrHost = errors.New("image: this host cannot run guests")

// Missing lists the Debian packages that this host lacks for building and booting guests. An error
// wraps ErrHost: no package would help.
func Missing() ([]string, error) {
	if runtime.GOARCH != "amd64" || runtime.GOOS != "linux" {
		return nil, fmt.Errorf("%w: guests are built for linux/amd64 only", ErrHost)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, fmt.Errorf("%w: guests are made of Debian packages, and this host has no apt-get", ErrHost)
	}
	var pkgs []string
	for _, t := range debian.hostTool {
		var err error
		if filepath.IsAbs(t.program) {
			_, err = os.Stat(t.program)
		} else {
			_, err = exec.LookPath(t.program)
		}
		if err != nil {
			pkgs = append(pkgs, t.pkg)
		}
	}
	return pkgs, nil
}

// Install installs what Missing lists. It needs root and a Debian archive.
func Install(ctx context.Context, log func(string)) error {
	pkgs, err := Missing()
	if err != nil || len(pkgs) == 0 {
		return err
	}
	log("installing " + strings.Join(pkgs, " "))
	if err := apt(ctx, "", "update", "-qq"); err != nil {
		return err
	}
	return apt(ctx, "", append([]string{"install", "-y", "-qq", "--no-install-recommends"},
		pkgs...)...)
}

// apt runs apt-get in dir.
func apt(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, tail(out))
	}
	return nil
}

func tail(b []byte) string {
	const most = 2000
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return strings.TrimSpace(string(b))
}

// source describes where packages come from.
type source struct{ options []string } // of apt-get and apt-cache

// newSource returns this host's source or Debian's archive of a release. apt-get's files for it go
// below work.
func newSource(ctx context.Context, work, release string) (*source, error) {
	if release == "" {
		if lists, _ := filepath.Glob("/var/lib/apt/lists/*Packages*"); len(lists) == 0 {
			return &source{}, apt(ctx, "", "update", "-qq")
		}
		return &source{}, nil
	}
	state := filepath.Join(work, "apt")
	if err := os.MkdirAll(filepath.Join(state, "lists/partial"), 0o755); err != nil {
		return nil, err
	}
	list, status := filepath.Join(state, "debian.sources"), filepath.Join(state, "status")
	text := "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: " + release +
		"\nComponents: main\n" +
		"Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
	if err := errors.Join(os.WriteFile(list, []byte(text), 0o644),
		os.WriteFile(status, nil, 0o644)); err != nil {
		return nil, err
	}
	s := &source{[]string{
		"-o", "Dir::Etc::sourcelist=" + list, "-o", "Dir::Etc::sourceparts=-", "-o",
		"Dir::State::lists=" + filepath.Join(state, "lists"),
		"-o", "Dir::State::status=" + status, "-o", "Dir::Cache=" + state, "-o",
		"Acquire::Languages=none", "-o", "APT::Sandbox::User=root",
	}}
	return s, apt(ctx, "", append([]string{"update", "-qq"}, s.options...)...)
}

// fetch downloads the packages of the recipe with their dependencies, as for an empty system, and
// the kernel, if it names one. It returns the folders of both.
func fetch(ctx context.Context, work string, s *spec) (debs, kernel string, err error) {
	debs, kernel = filepath.Join(work, "debs"), filepath.Join(work, "kernel")
	for _, d := range []string{filepath.Join(debs, "partial"), kernel} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", "", err
		}
	}
	from, err := newSource(ctx, work, s.release)
	if err != nil {
		return "", "", err
	}
	empty := filepath.Join(work, "status")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		return "", "", err
	}
	// Without locks: this host's package state is not touched.
	common := append(slices.Clone(from.options), "-o", "APT::Sandbox::User=root", "-o",
		"Debug::NoLocking=1", "-q")
	closure := append([]string{"install", "-y", "--download-only", "--no-install-recommends"},
		common...)
	closure = append(closure, "-o", "Dir::State::status="+empty, "-o", "Dir::Cache::archives="+debs,
		"-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=")
	if err := apt(ctx, "", append(closure, s.packages...)...); err != nil {
		return "", "", err
	}
	if s.kernel == "" {
		return debs, "", nil
	}
	version, err := from.newestKernel(ctx, s.kernel)
	if err != nil {
		return "", "", err
	}
	return debs, kernel, apt(ctx, kernel, append([]string{"download", version}, common...)...)
}

// newestKernel returns the package with files that the given metapackage depends on.
func (s *source) newestKernel(ctx context.Context, meta string) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-cache",
		append(slices.Clone(s.options), "depends", meta)...).Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache depends %s: %w", meta, err)
	}
	for _, l := range strings.Split(string(out), "\n") {
		if p, ok := strings.CutPrefix(strings.TrimSpace(l), "Depends: "); ok &&
			strings.HasPrefix(p, "linux-image-") {
			return p, nil
		}
	}
	return "", fmt.Errorf("%w: no kernel package for %s", ErrHost, meta)
}

// unpack extracts every package of a folder into root and returns their names.
func unpack(ctx context.Context, debs, root string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	var names []string
	for _, f := range files {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", f,
			root).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("dpkg-deb -x %s: %w\n%s", filepath.Base(f), err, tail(out))
		}
		names = append(names, filepath.Base(f))
	}
	return names, nil
}

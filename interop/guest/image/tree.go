package image

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Suite is a version of rdma-core's test suite and programs, with what they need to run.
type Suite struct {
	Root    string // folder for chroot: Debian packages, unpacked
	Version string // of rdma-core, for example "44"
	// Files of Root that a guest needs, by path in the guest, for Options.Files.
	Files map[string]string
}

// SuiteTests is the folder of the tests, in Suite.Root and in guests.
const SuiteTests = "usr/share/doc/rdma-core/tests"

// GetSuite returns the test suite of o.Debian's rdma-core. Its packages are downloaded once.
func GetSuite(ctx context.Context, o Options) (*Suite, error) {
	s, err := recipe(o.Debian)
	if err != nil {
		return nil, err
	}
	s.kernel = ""
	s.packages = []string{"python3-pyverbs", "rdma-core", "ibverbs-providers", "ibverbs-utils",
		"rdmacm-utils", "perftest", "iproute2", "dash", "coreutils", "libfabric-bin", "ucx-utils",
		"qperf"}
	dir, unlock, err := cacheDir()
	if err != nil {
		return nil, err
	}
	defer unlock()
	sum := sha256.Sum256(fmt.Appendf(nil, "suite %d.3 %q %q", recipeVersion, s.release, s.packages))
	root := filepath.Join(dir, "suite-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		if o.Log != nil {
			o.Log("downloading rdma-core's test suite (once)")
		}
		if err := buildSuite(ctx, dir, root, s); err != nil {
			return nil, err
		}
	}
	version, err := os.ReadFile(filepath.Join(root, versionFile))
	if err != nil {
		return nil, err
	}
	suite := &Suite{Root: root, Version: string(version)}
	suite.Files, err = guestFiles(root)
	return suite, err
}

// mergedDirs are the folders that may be links to folders below usr.
var mergedDirs = []string{"bin", "sbin", "lib", "lib64"}

// versionFile is a file in Suite.Root with Suite.Version.
const versionFile = ".rdma-core"

// buildSuite unpacks the packages in a folder that is renamed when it is complete.
func buildSuite(ctx context.Context, dir, root string, s *spec) error {
	work, err := os.MkdirTemp(dir, "build-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	debs, _, err := fetch(ctx, work, s)
	if err != nil {
		return err
	}
	out := filepath.Join(work, "out")
	names, err := unpack(ctx, debs, out)
	if err != nil {
		return err
	}
	version := ""
	for _, n := range names {
		if v, ok := strings.CutPrefix(n, "rdma-core_"); ok {
			version, _, _ = strings.Cut(v, ".")
		}
	}
	for _, d := range []string{"proc", "dev", "sys", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(out, d), 0o755); err != nil {
			return err
		}
	}
	// libfabric resolves the name localhost.
	if err := os.WriteFile(filepath.Join(out, "etc/hosts"), []byte("127.0.0.1 localhost\n"),
		0o644); err != nil {
		return err
	}
	// Newer releases have all programs and libraries below usr.
	for _, d := range mergedDirs {
		if err := os.Symlink("usr/"+d, filepath.Join(out, d)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(out, versionFile), []byte(version), 0o644); err != nil {
		return err
	}
	compressed, err := filepath.Glob(filepath.Join(out, SuiteTests, "*.gz"))
	if err != nil {
		return err
	}
	for _, f := range compressed {
		if err := gunzip(f); err != nil {
			return err
		}
	}
	return os.Rename(out, root)
}

// gunzip decompresses a file NAME.gz to NAME.
func gunzip(name string) error {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	z, err := gzip.NewReader(in)
	if err != nil {
		return fmt.Errorf("image: %s: %w", name, err)
	}
	out, err := os.Create(strings.TrimSuffix(name, ".gz"))
	if err != nil {
		return err
	}
	_, err = io.Copy(out, z)
	return errors.Join(err, out.Close())
}

// guestFiles returns Python, the libraries and the tests below root.
func guestFiles(root string) (map[string]string, error) {
	files := map[string]string{}
	add := func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil || strings.Contains(rel, "/test/") { // Python's own tests
			return err
		}
		if real, err := sysroot(root).resolve(rel); err == nil { // some links lead nowhere
			if st, err := os.Stat(real); err == nil && st.Mode().IsRegular() {
				files[rel] = real
			}
		}
		return nil
	}
	patterns := []string{"usr/bin/python3*", "usr/lib/python3*", SuiteTests,
		"usr/lib/" + arch + "/*.so*"}
	if st, err := os.Lstat(filepath.Join(root, "lib")); err == nil && st.IsDir() {
		patterns = append(patterns, "lib/"+arch+"/*.so*")
	}
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if err := filepath.WalkDir(f, add); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}

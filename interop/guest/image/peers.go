package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// buildPeers compiles every C program of a folder against the guest's libraries, once per state of
// the folder. It returns their files by path in the guest.
func buildPeers(ctx context.Context, base string, sources fs.FS) (map[string]string, error) {
	sum, names, err := survey(sources)
	if err != nil {
		return nil, err
	}
	kept := filepath.Join(base, "peers-"+sum)
	if _, err := os.Stat(kept); err != nil {
		work, err := os.MkdirTemp(base, "compile-*")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(work)
		if err := compile(ctx, sysroot(filepath.Join(base, sysrootDir)), sources, names,
			work); err != nil {
			return nil, err
		}
		if err := os.Rename(work, kept); err != nil {
			return nil, err
		}
	}
	out := map[string]string{}
	for _, n := range names {
		out["usr/bin/"+n] = filepath.Join(kept, n)
	}
	return out, nil
}

// survey returns a hash of the folder's content and the programs in it.
func survey(sources fs.FS) (sum string, programs []string, err error) {
	h := sha256.New()
	err = fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(sources, path)
		fmt.Fprintf(h, "%q %d\n%s", path, len(b), b)
		if name, ok := strings.CutSuffix(path, ".c"); ok {
			programs = append(programs, name)
		}
		return err
	})
	return hex.EncodeToString(h.Sum(nil)[:8]), programs, err
}

func compile(ctx context.Context, root sysroot, sources fs.FS, names []string, work string) error {
	if err := os.CopyFS(work, sources); err != nil {
		return err
	}
	lib, err := root.find("libibverbs.so.1", libraryDirs)
	if err != nil {
		return err
	}
	cm, err := root.find("librdmacm.so.1", libraryDirs)
	if err != nil {
		return err
	}
	// The guest's libraries may need a newer C library than this host's. The guest has it.
	args := []string{"-O2", "-Wall", "-Werror", "-I", root.host("usr/include"), "-Wl,--as-needed",
		"-Wl,--allow-shlib-undefined"}
	// libibverbs 47 and later can post FLUSH; Debian 12's cannot.
	if h, err := os.ReadFile(root.host("usr/include/infiniband/verbs.h")); err == nil &&
		bytes.Contains(h, []byte("ibv_wr_flush")) {
		args = append(args, "-DWITH_FLUSH")
	}
	for _, d := range libraryDirs[:2] {
		args = append(args, "-Wl,-rpath-link,"+root.host(d))
	}
	for _, n := range names {
		cmd := exec.CommandContext(ctx, "gcc",
			append(args[:len(args):len(args)], "-o", n, n+".c", lib, cm)...)
		cmd.Dir = work
		if b, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("image: compile the peer %s: %w\n%s", n, err, tail(b))
		}
	}
	return nil
}

package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// arch is Debian's name of the library folder of this architecture.
const arch = "x86_64-linux-gnu"

// sysroot is a folder with unpacked packages: a Debian system that was never installed.
type sysroot string

// resolve follows symbolic links inside the folder. Absolute ones are relative to the folder.
func (s sysroot) resolve(path string) (string, error) {
	const maxLinks = 16
	path = filepath.Clean("/" + path)
	for range maxLinks {
		st, err := os.Lstat(s.host(path))
		if err != nil {
			return "", err
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			return s.host(path), nil
		}
		to, err := os.Readlink(s.host(path))
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = filepath.Clean(to)
	}
	return "", fmt.Errorf("image: too many symbolic links at %s", path)
}

func (s sysroot) host(path string) string { return filepath.Join(string(s), path) }

var (
	programDirs = []string{"usr/bin", "usr/sbin", "bin", "sbin"}
	libraryDirs = []string{"lib/" + arch, "usr/lib/" + arch, "lib64", "usr/lib64", "lib", "usr/lib"}
)

// find looks for a file in folders of the sysroot and returns its real path.
func (s sysroot) find(name string, dirs []string) (string, error) {
	for _, d := range dirs {
		if p, err := s.resolve(filepath.Join(d, name)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("image: no %s in the packages: the recipe does not fit this Debian release", name)
}

// collector copies programs into an archive, followed by the libraries that they need.
type collector struct {
	from sysroot
	to   *archive
	libs map[string]bool
}

const guestLibs = "lib/" + arch

func (c *collector) program(name string) error {
	path, err := c.from.find(name, programDirs)
	if err != nil {
		return err
	}
	c.to.file("usr/bin/"+name, path)
	return c.needs(path)
}

// needs copies the libraries that the dynamic linker will look for, and theirs.
func (c *collector) needs(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		var bad *elf.FormatError
		if errors.As(err, &bad) {
			return nil // a script
		}
		return err
	}
	defer f.Close()
	names, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("image: %s: %w", path, err)
	}
	for _, n := range names {
		if c.libs[n] {
			continue
		}
		c.libs[n] = true
		lib, err := c.from.find(n, libraryDirs)
		if err != nil {
			return err
		}
		if strings.HasPrefix(n, "ld-linux") {
			c.to.file("lib64/"+n, lib)
			continue
		}
		c.to.file(guestLibs+"/"+n, lib)
		if err := c.needs(lib); err != nil {
			return err
		}
	}
	return nil
}

// loaded copies libraries that are opened by name at run time.
func (c *collector) loaded(pattern string) error {
	for _, d := range libraryDirs {
		hits, err := filepath.Glob(c.from.host(filepath.Join(d, pattern)))
		if err != nil {
			return err
		}
		for _, h := range hits {
			rel, err := filepath.Rel(c.from.host(d), h)
			if err != nil {
				return err
			}
			real, err := c.from.resolve(filepath.Join(d, rel))
			if err != nil {
				return err
			}
			// Providers are looked for below the folder that the library was configured with.
			c.to.file(filepath.Join("usr/lib/"+arch, rel), real)
			c.to.file(filepath.Join(guestLibs, rel), real)
			if err := c.needs(real); err != nil {
				return err
			}
		}
		if len(hits) > 0 {
			return nil
		}
	}
	return fmt.Errorf("image: no library %s in the packages: the recipe does not fit this Debian release", pattern)
}

// data copies a file or a folder if it exists.
func (c *collector) data(path string) error {
	return filepath.WalkDir(c.from.host(path), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if d.Type().IsRegular() {
			rel, err := filepath.Rel(string(c.from), p)
			if err != nil {
				return err
			}
			c.to.file(rel, p)
		}
		return nil
	})
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

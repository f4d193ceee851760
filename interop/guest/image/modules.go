package image

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// moduleSet describes the modules of one kernel: their files, dependencies and aliases.
type moduleSet struct {
	dir     string            // lib/modules/VERSION of the unpacked package
	paths   map[string]string // module name to path below dir
	builtin map[string]bool
	info    map[string]moduleInfo
}

type moduleInfo struct{ depends, aliases []string }

// moduleName returns the kernel's name of a module file.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	return strings.ReplaceAll(name, "-", "_")
}

func newModuleSet(dir string) (*moduleSet, error) {
	m := &moduleSet{dir: dir, paths: map[string]string{}, builtin: map[string]bool{},
		info: map[string]moduleInfo{}}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.Contains(d.Name(), ".ko") {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		m.paths[moduleName(p)] = rel
		return err
	})
	if err != nil {
		return nil, err
	}
	list, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for _, p := range strings.Fields(string(list)) {
		m.builtin[moduleName(p)] = true
	}
	return m, nil
}

// read returns a module's bytes, decompressed.
func (m *moduleSet) read(name string) ([]byte, error) {
	p, ok := m.paths[name]
	if !ok {
		return nil, fmt.Errorf("image: the kernel has no module %s: the recipe does not fit this Debian release", name)
	}
	p = filepath.Join(m.dir, p)
	if strings.HasSuffix(p, ".xz") {
		return exec.Command("xz", "-dc", p).Output()
	}
	return os.ReadFile(p)
}

// order returns the modules that names need, dependencies first, each once, without built-in ones.
func (m *moduleSet) order(names []string) ([]string, error) {
	var out []string
	var visit func(string) error
	visit = func(n string) error {
		if m.builtin[n] || slices.Contains(out, n) {
			return nil
		}
		i, err := m.lookup(n)
		if err != nil {
			return err
		}
		for _, d := range i.depends {
			if err := visit(d); err != nil {
				return err
			}
		}
		out = append(out, n)
		return nil
	}
	for _, n := range names {
		if err := visit(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *moduleSet) lookup(name string) (moduleInfo, error) {
	if i, ok := m.info[name]; ok {
		return i, nil
	}
	b, err := m.read(name)
	if err != nil {
		return moduleInfo{}, err
	}
	i, err := readModuleInfo(b)
	if err != nil {
		return moduleInfo{}, fmt.Errorf("image: module %s: %w", name, err)
	}
	m.info[name] = i
	return i, nil
}

// readModuleInfo reads the section with "key=value" strings of a module.
func readModuleInfo(b []byte) (moduleInfo, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return moduleInfo{}, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return moduleInfo{}, fmt.Errorf("no .modinfo section")
	}
	data, err := s.Data()
	if err != nil {
		return moduleInfo{}, err
	}
	return parseModuleInfo(data), nil
}

func parseModuleInfo(data []byte) moduleInfo {
	var i moduleInfo
	for _, field := range strings.Split(string(data), "\x00") {
		key, value, _ := strings.Cut(field, "=")
		switch {
		case key == "depends" && value != "":
			for _, d := range strings.Split(value, ",") {
				i.depends = append(i.depends, strings.ReplaceAll(d, "-", "_"))
			}
		case key == "alias":
			i.aliases = append(i.aliases, value)
		}
	}
	return i
}

// add copies modules into the archive with the lists that init and modprobe read.
func (m *moduleSet) add(a *archive, version string, boot, more []string) error {
	first, err := m.order(boot)
	if err != nil {
		return err
	}
	all, err := m.order(append(slices.Clone(boot), more...))
	if err != nil {
		return err
	}
	base := "lib/modules/" + version + "/"
	place := func(n string) string { return strings.TrimSuffix(m.paths[n], ".xz") }
	var dep, alias, list strings.Builder
	for _, n := range all {
		b, err := m.read(n)
		if err != nil {
			return err
		}
		a.bytes(base+place(n), 0o644, b)
		dep.WriteString(place(n) + ":")
		chain, err := m.order(m.info[n].depends)
		if err != nil {
			return err
		}
		slices.Reverse(chain)
		for _, d := range chain {
			dep.WriteString(" " + place(d))
		}
		dep.WriteString("\n")
		for _, al := range m.info[n].aliases {
			fmt.Fprintf(&alias, "alias %s %s\n", al, n)
		}
	}
	for _, n := range first {
		fmt.Fprintf(&list, "/%s%s\n", base, place(n))
	}
	a.bytes(base+"modules.dep", 0o644, []byte(dep.String()))
	a.bytes(base+"modules.alias", 0o644, []byte(alias.String()))
	a.bytes(base+"modules.symbols", 0o644, nil)
	a.bytes("etc/gorxe/modules", 0o644, []byte(list.String()))
	return nil
}

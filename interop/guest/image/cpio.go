package image

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// archive writes a cpio archive in the "newc" format, which the kernel unpacks as its first root.
// All files belong to root. An initramfs may contain several archives.
type archive struct {
	w     *bufio.Writer
	inode int
	pos   int64
	made  map[string]bool
	err   error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: bufio.NewWriterSize(w, 1<<20), made: map[string]bool{"": true, ".": true}}
}

// The file types of a mode.
const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
)

// entry writes one header, name and content, each padded to 4 bytes.
func (a *archive) entry(name string, mode uint32, size int64, content io.Reader) {
	if a.err != nil {
		return
	}
	a.inode++
	links := 1
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(name)+1, 0)
	a.put(strings.NewReader(head + name + "\x00"))
	a.pad()
	if content != nil {
		if n := a.put(content); a.err == nil && n != size {
			a.err = fmt.Errorf("image: %s changed while it was read", name)
		}
		a.pad()
	}
}

func (a *archive) put(r io.Reader) int64 {
	n, err := io.Copy(a.w, r)
	a.pos += n
	if a.err == nil {
		a.err = err
	}
	return n
}

func (a *archive) pad() {
	const align = 4
	if n := -a.pos & (align - 1); n > 0 {
		a.put(strings.NewReader("\x00\x00\x00"[:n]))
	}
}

// dir adds a folder and its parents, once.
func (a *archive) dir(name string) {
	name = filepath.Clean(name)
	if a.made[name] {
		return
	}
	a.dir(filepath.Dir(name))
	a.made[name] = true
	a.entry(name, typeDir|0o755, 0, nil)
}

func (a *archive) bytes(name string, perm fs.FileMode, b []byte) {
	if a.made[name] {
		return
	}
	a.dir(filepath.Dir(name))
	a.made[name] = true
	a.entry(name, typeFile|uint32(perm.Perm()), int64(len(b)), strings.NewReader(string(b)))
}

func (a *archive) link(name, target string) {
	if a.made[name] {
		return
	}
	a.dir(filepath.Dir(name))
	a.made[name] = true
	a.entry(name, typeLink|0o777, int64(len(target)), strings.NewReader(target))
}

// file copies a file of this host. An existing name is kept.
func (a *archive) file(name, from string) {
	if a.err != nil || a.made[name] {
		return
	}
	f, err := os.Open(from)
	if err == nil {
		defer f.Close()
		var st fs.FileInfo
		if st, err = f.Stat(); err == nil {
			a.dir(filepath.Dir(name))
			a.made[name] = true
			a.entry(name, typeFile|uint32(st.Mode().Perm()), st.Size(), f)
		}
	}
	if a.err == nil && err != nil {
		a.err = err
	}
}

// close ends the archive and pads it so that another one may follow.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, 0, nil)
	if a.err != nil {
		return a.err
	}
	return a.w.Flush()
}

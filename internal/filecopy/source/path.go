package source

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// Path is something to send: a file, a tree, or a stream.
type Path struct {
	// Dir is the directory that contains Name, or whose contents are sent if Name is empty.
	Dir  *os.Root
	Name string
	// As is the name at the sink, Name by default. The sink may know better (record.Request).
	As string
	// Stream is sent instead of a file if it is set. As is its name.
	Stream io.Reader
	// Text is the path for messages. Those of entries below begin with it.
	Text string
}

// Close closes the directory.
func (p *Path) Close() {
	if p.Dir != nil {
		_ = p.Dir.Close()
	}
}

// as returns the name at the sink.
func (p *Path) as() string {
	if p.As != "" {
		return p.As
	}
	return p.Name
}

// Single reports whether the path is one file or stream, as opposed to a directory. A path that
// does not exist counts as a file.
func (p *Path) Single() bool {
	if p.Stream != nil {
		return true
	}
	if p.Name == "" {
		return false
	}
	info, err := p.Dir.Lstat(p.Name)
	return err != nil || !info.IsDir()
}

// Only describes the only path: whether it is single, and the attributes of the directory whose
// contents are sent. With several paths, and if there is no such directory, it returns zero values.
func Only(paths []*Path) (single bool, top *record.Attributes) {
	if len(paths) != 1 {
		return false, nil
	}
	p := paths[0]
	if p.Stream != nil || p.Name != "" {
		return p.Single(), nil
	}
	info, err := p.Dir.Stat(".")
	if err != nil {
		return false, nil // reading it will fail, too
	}
	return false, &record.Attributes{Perm: uint16(info.Mode().Perm()), Mtime: info.ModTime()}
}

// onlyDir at the end of a path keeps OpenRoot from waiting for the writer of a FIFO.
const onlyDir = "/."

// Base returns the name at the end of a path. It is "" if the path stands for the contents of a
// directory: with a slash, "." or ".." at its end, as in rsync.
func Base(path string) string {
	base := filepath.Base(path)
	if strings.HasSuffix(path, "/") || base == "." || base == ".." {
		return ""
	}
	return base
}

// Open opens a path of the local host. See Base.
func Open(path string) (*Path, error) {
	if path == "" {
		return nil, errors.New("the path is empty")
	}
	clean, name := filepath.Clean(path), Base(path)
	if name == "" {
		root, err := os.OpenRoot(clean + onlyDir)
		if err != nil {
			return nil, readable(path, err)
		}
		return &Path{Dir: root, Text: clean}, nil
	}
	root, err := os.OpenRoot(filepath.Dir(clean) + onlyDir)
	if err != nil {
		return nil, readable(path, err)
	}
	return &Path{Dir: root, Name: name, Text: clean}, nil
}

// OpenBelow is Open for a path below a directory that it does not leave.
func OpenBelow(top *os.Root, path string) (*Path, error) {
	// Rooted, so that .. does not lead out.
	clean, name := strings.TrimPrefix(filepath.Clean("/"+path), "/"), Base(path)
	if clean == "" {
		clean = "."
	}
	if name == "" {
		root, err := top.OpenRoot(clean + onlyDir)
		if err != nil {
			return nil, readable(path, err)
		}
		return &Path{Dir: root, Text: clean}, nil
	}
	root, err := top.OpenRoot(filepath.Dir(clean) + onlyDir)
	if err != nil {
		return nil, readable(path, err)
	}
	return &Path{Dir: root, Name: name, Text: clean}, nil
}

// readable returns an error without the names of system calls.
func readable(path string, err error) error { return fmt.Errorf("%s: %w", path, reason(err)) }

// reason removes system calls and paths from an error of package os.
func reason(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}

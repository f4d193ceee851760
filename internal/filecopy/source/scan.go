package source

import (
	"context"
	"io/fs"
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/filecopy/dirs"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/pattern"
)

// Scan counts entries and bytes. Its methods may be called while Run runs.
type Scan struct {
	entries, bytes atomic.Int64
	done           atomic.Bool
}

// Total returns the number of entries and bytes. It returns false as long as they are not known.
func (s *Scan) Total() (entries, bytes int64, known bool) {
	return s.entries.Load(), s.bytes.Load(), s.done.Load()
}

// Run counts. It ignores what cannot be read. With a stream, the total remains unknown.
func (s *Scan) Run(ctx context.Context, paths []*Path, rules *pattern.List) {
	c := dirs.NewCache()
	defer c.Close()
	for _, p := range paths {
		switch {
		case p.Stream != nil:
			return
		case p.Name == "":
			s.contents(ctx, c, rules, dirs.Top(p.Dir))
		default:
			if info, err := p.Dir.Lstat(p.Name); err == nil {
				s.entry(ctx, c, rules, dirs.Top(p.Dir), p.Name, info)
			}
		}
	}
	s.done.Store(ctx.Err() == nil)
}

func (s *Scan) contents(ctx context.Context, c *dirs.Cache, rules *pattern.List, d *dirs.Dir) {
	root, err := c.Use(d)
	if err != nil {
		return
	}
	f, err := root.Open(".")
	c.Release(d)
	if err != nil {
		return
	}
	defer f.Close()
	for ctx.Err() == nil {
		list, err := f.ReadDir(readNames)
		for _, e := range list {
			if info, err := e.Info(); err == nil {
				s.entry(ctx, c, rules, d, e.Name(), info)
			}
		}
		if err != nil {
			return
		}
	}
}

func (s *Scan) entry(
	ctx context.Context, c *dirs.Cache, rules *pattern.List, d *dirs.Dir, name string,
	info fs.FileInfo,
) {
	_, temporary := part.Temporary(name)
	if temporary || !rules.Empty() && !rules.Includes(d.Join(name), info.IsDir()) {
		return
	}
	s.entries.Add(1)
	if info.Mode().IsRegular() {
		s.bytes.Add(info.Size())
	}
	if info.IsDir() {
		below := d.Child(name)
		s.contents(ctx, c, rules, below)
		c.Forget(below)
	}
}

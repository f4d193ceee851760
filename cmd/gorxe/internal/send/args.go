package send

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"path"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/filecopy/pattern"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// standard is the name of standard input and output.
const standard = "-"

// splitHost splits HOST:PATH. The host may be an IPv6 address in brackets. The path must not lead
// out of the receiver's directory; the receiver would take "../x" as "x".
func splitHost(text string) (host, at string, err error) {
	if host, at, err = cutHost(text); err != nil {
		return "", "", err
	}
	if below := path.Clean(at); below == ".." || strings.HasPrefix(below, "../") {
		return "", "", cli.Usagef("%q is outside of the receiver's directory: write a path below it",
			text)
	}
	return host, at, nil
}

func cutHost(text string) (host, at string, err error) {
	bad := cli.Usagef("%q is not HOST:PATH: write for example 10.0.0.2:dir, [fe80::1%%eth0]:dir, or "+
		"10.0.0.2: for the directory of the receiver", text)
	if strings.HasPrefix(text, "[") {
		host, rest, ok := strings.Cut(text[1:], "]")
		at, colon := strings.CutPrefix(rest, ":")
		if !ok || !colon || host == "" {
			return "", "", bad
		}
		return host, at, nil
	}
	if i := strings.LastIndexByte(text, ':'); i >= 0 {
		if a, err := netip.ParseAddr(text[:i]); err == nil && a.Is6() {
			return "", "", cli.Usagef("%q has an IPv6 address without brackets: write [%v]:%s", text, a,
				text[i+1:])
		}
	}
	host, at, ok := strings.Cut(text, ":")
	if !ok || host == "" || strings.Contains(host, "/") {
		return "", "", bad
	}
	if _, name, ok := strings.Cut(host, "@"); ok {
		return "", "", cli.Usagef("%q has a user name, but all files belong to the user of "+
			"'gorxe recv': write %s:%s", text, name, at)
	}
	return host, at, nil
}

// plan is what the arguments ask for.
type plan struct {
	host    string
	pull    bool
	target  string   // of the receiver, or of this host for a pull
	sources []string // of this host, or of the receiver for a pull
}

func (f *flags) checkArgs(args []string) error {
	_, err := f.plan(args)
	return err
}

// plan parses the arguments.
func (f *flags) plan(args []string) (*plan, error) {
	for _, a := range args {
		if a == "" {
			return nil, cli.Usagef("a path is empty")
		}
	}
	if len(f.from) > 0 {
		return f.planPull(args)
	}
	switch len(args) {
	case 0:
		return nil, cli.Usagef("SOURCE and HOST: are missing")
	case 1:
		if _, _, err := splitHost(args[0]); err == nil {
			return nil, cli.Usagef("SOURCE is missing")
		}
		return nil, cli.Usagef("HOST: is missing: write for example 10.0.0.2: as the last argument")
	}
	last := len(args) - 1
	p := &plan{sources: args[:last]}
	var err error
	if p.host, p.target, err = splitHost(args[last]); err != nil {
		return nil, err
	}
	if len(p.sources) > 1 && contains(p.sources, standard) {
		return nil, cli.Usagef("standard input (-) must be the only source")
	}
	if p.sources[0] == standard && (p.target == "" || strings.HasSuffix(p.target, "/")) {
		return nil, cli.Usagef("standard input has no name: write %sNAME", args[last])
	}
	if p.sources[0] == standard && f.dryRun {
		return nil, cli.Usagef("--dry-run is not possible with standard input")
	}
	if f.delete && len(p.sources) > 1 && hasContents(p.sources) {
		return nil, cli.Usagef("--delete with several sources would delete files of the others from " +
			"the target: send DIR/ alone, or name directories without a slash")
	}
	return p, distinct(p.sources)
}

func (f *flags) planPull(args []string) (*plan, error) {
	p := &plan{pull: true, target: "."}
	switch len(args) {
	case 0:
	case 1:
		p.target = args[0]
	default:
		return nil, cli.Usagef("%q is one argument too many: with --from, name only the target",
			args[1])
	}
	for i, text := range f.from {
		host, path, err := splitHost(text)
		if err != nil {
			return nil, err
		}
		if i > 0 && host != p.host {
			return nil, cli.Usagef("--from names two hosts, %s and %s: copy from one at a time",
				p.host, host)
		}
		p.host = host
		p.sources = append(p.sources, path)
	}
	if p.target == standard && (len(p.sources) > 1 || f.dryRun || f.delete) {
		return nil, cli.Usagef("standard output (-) takes one file, without --dry-run and --delete")
	}
	if f.delete && len(p.sources) > 1 && hasContents(p.sources) {
		return nil, cli.Usagef("--delete with several sources would delete files of the others: copy " +
			"one directory at a time")
	}
	return p, distinct(p.sources)
}

func contains(list []string, text string) bool {
	for _, s := range list {
		if s == text {
			return true
		}
	}
	return false
}

// hasContents reports whether a source stands for the contents of a directory.
func hasContents(list []string) bool {
	for _, s := range list {
		if source.Base(s) == "" {
			return true
		}
	}
	return false
}

// distinct returns an error if two sources have the same name. They would replace each other, or
// with --delete delete each other's files.
func distinct(sources []string) error {
	seen := map[string]bool{}
	for _, s := range sources {
		name := source.Base(s)
		if name != "" && seen[name] {
			return cli.Usagef("two sources have the name %q: copy them to different targets", name)
		}
		seen[name] = true
	}
	return nil
}

// open opens the sources of this host.
func (p *plan) open(in io.Reader) (list []*source.Path, err error) {
	for _, name := range p.sources {
		if name == standard {
			return []*source.Path{{Stream: in, As: "stdin", Text: "standard input"}}, nil
		}
		path, err := source.Open(name)
		if err != nil {
			closePaths(list)
			return nil, err
		}
		list = append(list, path)
		if err := exists(path); err != nil && len(p.sources) == 1 {
			closePaths(list)
			return nil, err
		}
	}
	return list, nil
}

// exists returns an error if the only source does not exist, before anything is opened.
func exists(p *source.Path) error {
	if p.Name == "" {
		return nil
	}
	if _, err := p.Dir.Lstat(p.Name); errors.Is(err, os.ErrNotExist) {
		return &os.PathError{Op: "send", Path: p.Text, Err: os.ErrNotExist}
	}
	return nil
}

func closePaths(list []*source.Path) {
	for _, p := range list {
		p.Close()
	}
}

// compile returns the rules of the flags.
func compile(rules []record.Rule) (*pattern.List, error) {
	list := new(pattern.List)
	for _, r := range rules {
		if err := list.Add(r.Exclude, r.Pattern); err != nil {
			return nil, err
		}
	}
	return list, nil
}

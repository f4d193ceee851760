package pattern

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// MaxLength is the length of the longest pattern in bytes.
const MaxLength = 1000

// List is an ordered list of rules. The zero List includes everything.
type List struct{ rules []rule }

type rule struct {
	exclude bool
	dir     bool // matches directories only
	path    bool // matches the path, not just its last element
	slash   bool // matches the path of a directory with a slash at its end
	re      *regexp.Regexp
}

// Empty reports whether the list has no rules.
func (l *List) Empty() bool { return l == nil || len(l.rules) == 0 }

// Add appends a rule that excludes or includes what matches the pattern.
func (l *List) Add(exclude bool, pattern string) error {
	r := rule{exclude: exclude}
	if len(pattern) > MaxLength {
		return fmt.Errorf("a pattern has %d bytes: use at most %d", len(pattern), MaxLength)
	}
	if !utf8.ValidString(pattern) {
		return fmt.Errorf("%q is not valid UTF-8: write ? for each byte that is not", pattern)
	}
	rest, dir := strings.CutSuffix(pattern, "/")
	r.dir = dir
	begin := `(?:^|/)`
	if strings.HasPrefix(rest, "/") {
		rest, begin = rest[1:], `^`
		r.path = true
	}
	r.path = r.path || strings.Contains(rest, "/") || strings.Contains(rest, "**")
	if !r.path {
		begin = `^`
	}
	if top, ok := strings.CutPrefix(rest, "**/"); ok && top != "" {
		rest, begin = top, `(?:^|/)` // any number of directories, also none
	}
	if name, ok := strings.CutSuffix(rest, "/***"); ok {
		rest, r.slash = name+"/**", true // the directory and what is in it
	}
	if rest == "" {
		return fmt.Errorf("%q is not a pattern: write a name, for example *.o or /build/", pattern)
	}
	re, err := regexp.Compile(`(?s)` + begin + translate(rest) + `$`)
	if err != nil {
		return fmt.Errorf("%q is not a pattern: use *, **, ?, [abc], [[:alpha:]], and \\ before a "+
			"special character", pattern)
	}
	r.re = re
	l.rules = append(l.rules, r)
	return nil
}

// translate returns a regular expression for a pattern.
func translate(pattern string) string {
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; c {
		case '*':
			if strings.HasPrefix(pattern[i:], "**") {
				i++
				b.WriteString(`.*`)
			} else {
				b.WriteString(`[^/]*`)
			}
		case '?':
			b.WriteString(`[^/]`)
		case '[':
			class, n := class(pattern[i:])
			if n == 0 {
				return `[` // the compiler reports it
			}
			b.WriteString(class)
			i += n - 1
		case '\\':
			if i++; i == len(pattern) {
				return `[`
			}
			b.WriteString(literal(pattern[i]))
		default:
			b.WriteString(literal(c))
		}
	}
	return b.String()
}

// class translates a set of characters such as [a-z] or [!0-9] at the beginning of text. n is its
// length, 0 if it has no end or an unknown class such as [:x:].
func class(text string) (re string, n int) {
	i := 1
	negate := i < len(text) && (text[i] == '!' || text[i] == '^')
	if negate {
		i++
	}
	begin := i
	for ; i < len(text); i++ {
		if text[i] == '\\' {
			i++
			continue
		}
		if name := posix(text[i:]); name != "" {
			i += len(name) - 1
			continue
		}
		if text[i] == ']' && i > begin {
			break
		}
	}
	if i >= len(text) {
		return "", 0
	}
	// Only what is quoted here reaches the compiler: [\pL], for example, would be thousands of
	// characters.
	var inner strings.Builder
	for k := begin; k < i; k++ {
		name := posix(text[k:i])
		switch {
		case name != "":
			if !posixClasses[name] {
				return "", 0
			}
			inner.WriteString(name)
			k += len(name) - 1
		case text[k] != '\\':
			inner.WriteString(literal(text[k]))
		case text[k+1] == '-':
			inner.WriteString(`\-`) // not a range
			k++
		default:
			inner.WriteString(literal(text[k+1]))
			k++
		}
	}
	if negate {
		return `[^/` + inner.String() + `]`, i + 1
	}
	return `[` + inner.String() + `]`, i + 1
}

// posixClasses are the classes of characters that rsync and the compiler know.
var posixClasses = map[string]bool{"[:alnum:]": true, "[:alpha:]": true, "[:blank:]": true,
	"[:cntrl:]": true, "[:digit:]": true, "[:graph:]": true, "[:lower:]": true, "[:print:]": true,
	"[:punct:]": true, "[:space:]": true, "[:upper:]": true, "[:xdigit:]": true}

// posix returns a class such as [:alpha:] at the beginning of text, "" if there is none.
func posix(text string) string {
	if !strings.HasPrefix(text, "[:") {
		return ""
	}
	n := strings.IndexFunc(text[2:], func(c rune) bool { return c < 'a' || c > 'z' })
	if n < 0 || !strings.HasPrefix(text[2+n:], ":]") {
		return ""
	}
	return text[:2+n+2]
}

// literal returns a regular expression for a byte of a pattern that stands for itself.
func literal(c byte) string {
	if c >= utf8.RuneSelf {
		return string([]byte{c}) // part of a character
	}
	return regexp.QuoteMeta(string(rune(c)))
}

// Includes reports whether a path is to be copied. Its elements are separated by slashes; it is
// relative to the top of what is copied.
func (l *List) Includes(path string, dir bool) bool {
	if l == nil {
		return true
	}
	last := path[strings.LastIndexByte(path, '/')+1:]
	for i := range l.rules {
		r := &l.rules[i]
		if r.dir && !dir {
			continue
		}
		text := last
		if r.path {
			text = path
		}
		if r.slash && dir {
			text += "/"
		}
		if r.re.MatchString(text) {
			return !r.exclude
		}
	}
	return true
}

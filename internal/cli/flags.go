package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// PortVar adds a flag for a port number with a default value. The values of the flag --datapath are
// possible, too: "--port udp" is "--datapath udp" and leaves the port number as it is.
func PortVar(fs *pflag.FlagSet, p *Int, name, shorthand string, value int, usage string) {
	*p = Int{N: value, Min: 1, Max: 65535}
	fs.VarP(portValue{p, fs}, name, shorthand, usage)
}

// portValue is a port number as a flag value, or a value of --datapath.
type portValue struct {
	*Int
	fs *pflag.FlagSet
}

// Set implements pflag.Value.
func (p portValue) Set(text string) error {
	switch f := p.fs.Lookup("datapath"); {
	case f == nil:
	case text == "auto", text == "xdp", text == "udp":
		return p.fs.Set(f.Name, text)
	}
	return p.Int.Set(text)
}

// JSONVar adds the flag --json.
func JSONVar(fs *pflag.FlagSet, p *bool, usage string) { fs.BoolVar(p, "json", false, usage) }

// Given returns the name of a flag that the user has given, the first of names, or "". Commands
// refuse flags that have no effect.
func Given(fs *pflag.FlagSet, names ...string) string {
	for _, name := range names {
		if fs.Changed(name) {
			return name
		}
	}
	return ""
}

// CheckClient refuses flags of servers in a command that is a client if it has a HOST.
func CheckClient(fs *pflag.FlagSet) error {
	if name := Given(fs, "allow", "deny", "user", "no-confine"); name != "" {
		return Usagef("--%s is for servers, which have no HOST: leave out one of them", name)
	}
	return nil
}

// checkEmpty refuses flags with an empty text, probably an unset variable of a script. Most
// commands would take it for a missing flag, and use another device or no token, for example.
func checkEmpty(fs *pflag.FlagSet) (err error) {
	fs.Visit(func(f *pflag.Flag) {
		list, isList := f.Value.(pflag.SliceValue)
		if f.Value.Type() == "string" && f.Value.String() == "" ||
			isList && len(list.GetSlice()) == 0 {
			err = Usagef("--%s is empty: name something, or leave it out", f.Name)
		}
	})
	return err
}

// HideDefaults removes the default values of flags from the help text. It is for flags whose usage
// text describes the default.
func HideDefaults(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		fs.Lookup(name).DefValue = ""
	}
}

// mtus are the path MTUs of InfiniBand and RoCE, in bytes.
var mtus = []int{256, 512, 1024, 2048, 4096}

// MTU is a flag value: a path MTU. 0 is possible only as the value before Set.
type MTU struct{ N int }

// Set implements pflag.Value.
func (m *MTU) Set(text string) error {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || !slices.Contains(mtus, n) {
		return fmt.Errorf("%q is not a path MTU: choose 256, 512, 1024, 2048 or 4096", text)
	}
	m.N = n
	return nil
}

// String implements pflag.Value.
func (m *MTU) String() string { return strconv.Itoa(m.N) }

// Type implements pflag.Value.
func (m *MTU) Type() string { return "int" }

// Choices returns the path MTUs, which shells complete.
func (m *MTU) Choices() []string {
	words := make([]string, len(mtus))
	for i, n := range mtus {
		words[i] = strconv.Itoa(n)
	}
	return words
}

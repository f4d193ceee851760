package cli

import (
	"net"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// complete lets shells complete the words of flags and network interfaces, and file names only
// where they are possible. args are those of the program: without a request for completions it does
// nothing.
func complete(root *cobra.Command, args []string) {
	if len(args) == 0 || args[0] != cobra.ShellCompRequestCmd &&
		args[0] != cobra.ShellCompNoDescRequestCmd {
		return
	}
	completeCommand(root)
}

func completeCommand(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if words := completeFlag(f); words != nil {
			// The error means that the flag has completions of its own.
			_ = cmd.RegisterFlagCompletionFunc(f.Name, words)
		}
	})
	if cmd.ValidArgsFunction == nil && !strings.Contains(cmd.Use, " ") { // it has no arguments
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, c := range cmd.Commands() {
		completeCommand(c)
	}
}

// choices is a flag value that is one of a few words.
type choices interface{ Choices() []string }

// completeFlag returns the completions of a flag, or nil for file names.
func completeFlag(f *pflag.Flag) cobra.CompletionFunc {
	if c, ok := f.Value.(choices); ok {
		return cobra.FixedCompletions(c.Choices(), cobra.ShellCompDirectiveNoFileComp)
	}
	switch f.Name {
	case "dev", "interface":
		return interfaceNames
	case "dir":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	}
	switch f.Value.Type() {
	case "string", "stringArray":
		return nil
	}
	return cobra.NoFileCompletions // a number, for example
}

// CompleteFirst completes the first argument of a command, which is one of words. The others are
// not names of files.
func CompleteFirst(words []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteInterface completes the first argument of a command, a network interface.
func CompleteInterface(cmd *cobra.Command, args []string, start string) ([]string,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return interfaceNames(cmd, args, start)
}

// interfaceNames returns the network interfaces whose names begin with start.
func interfaceNames(_ *cobra.Command, _ []string, start string) (names []string,
	_ cobra.ShellCompDirective) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, i := range list {
		if strings.HasPrefix(i.Name, start) {
			names = append(names, i.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

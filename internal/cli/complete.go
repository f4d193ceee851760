package cli

import (
	"net"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// devFlag is the name of the flags that select a network interface.
const devFlag = "dev"

// complete lets shells complete the words of all Choice flags, and network interfaces. args are
// those of the program: without a request for completions it does nothing.
func complete(root *cobra.Command, args []string) {
	if len(args) == 0 || args[0] != cobra.ShellCompRequestCmd &&
		args[0] != cobra.ShellCompNoDescRequestCmd {
		return
	}
	completeFlags(root)
}

func completeFlags(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		var words cobra.CompletionFunc
		if c, ok := f.Value.(*Choice); ok {
			words = cobra.FixedCompletions(c.Words, cobra.ShellCompDirectiveNoFileComp)
		} else if f.Name == devFlag {
			words = interfaceNames
		}
		if words != nil { // the error means that the flag has completions of its own
			_ = cmd.RegisterFlagCompletionFunc(f.Name, words)
		}
	})
	for _, c := range cmd.Commands() {
		completeFlags(c)
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

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit statuses of gorxe.
const (
	StatusOK      = 0
	StatusFailure = 1
	StatusUsage   = 2
)

// ErrInterrupted means that a signal ended a command before it was done.
var ErrInterrupted = errors.New("interrupted")

// usageError marks an error in a flag or an argument. Its exit status is StatusUsage.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

// Usage marks err as a usage error, which has exit status 2. Usage(nil) is nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// Usagef returns a formatted usage error.
func Usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// exitError ends a command with an exit status, without a message.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Exit returns an error that ends a command with an exit status and without a message. Exit(0) is
// nil.
func Exit(status int) error {
	if status == StatusOK {
		return nil
	}
	return exitError(status)
}

// Named checks the number of arguments against their names. Arguments whose names are in brackets
// are optional. The errors are more specific than those of cobra's own checks.
func Named(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		for i, name := range names {
			switch {
			case i >= len(args) && !strings.HasPrefix(name, "["):
				return Usagef("%s is missing", name)
			case i < len(args) && args[i] == "":
				// Probably an unset variable of a script.
				return Usagef("%s is empty", strings.Trim(name, "[]"))
			}
		}
		if len(args) > len(names) {
			return Usagef("%q is one argument too many", args[len(names)])
		}
		return nil
	}
}

// Status returns the exit status for err.
func Status(err error) int {
	var u usageError
	var e exitError
	switch {
	case err == nil:
		return StatusOK
	case errors.As(err, &e):
		return int(e)
	case errors.As(err, &u):
		return StatusUsage
	}
	return StatusFailure
}

// VersionKey is the annotation of the root command that has the version of gorxe.
const VersionKey = "version"

// Run executes root with args and returns the exit status. It prints an error as one line on
// stderr. The first SIGINT, SIGTERM or (unless ignored) SIGHUP cancels the commands' context with
// the cause ErrInterrupted, so that they can clean up. A second signal, unless it follows at once,
// kills the process.
func Run(root *cobra.Command, args []string) int {
	ctx, stop := signalContext()
	defer stop()
	root.SetArgs(args)
	complete(root, args)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Hidden { // gorxe itself runs it, and gives all flags
			return nil
		}
		return checkEmpty(cmd.Flags())
	}
	helped := checkHelp(root)
	cmd, err := root.ExecuteContextC(ctx)
	err = cmp.Or(interrupted(ctx, err), *helped)
	if silent := exitError(0); err != nil && !errors.As(err, &silent) {
		report(os.Stderr, cmd, err)
	}
	return Status(err)
}

// checkHelp returns where the error will be if a help text cannot be written: cobra ignores it.
func checkHelp(root *cobra.Command) *error {
	failed := new(error)
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		out := NewOutput(cmd.OutOrStdout())
		cmd.SetOut(out)
		help(cmd, args)
		*failed = out.Result(nil)
	})
	return failed
}

// interrupted returns ErrInterrupted if a signal has ended ctx and err is the consequence.
func interrupted(ctx context.Context, err error) error {
	if Interrupted(ctx) && errors.Is(err, context.Canceled) {
		return ErrInterrupted
	}
	return err
}

// flagError returns the usage error for an error of pflag, in the words of this package's values.
func flagError(err error) error {
	invalid, number := new(pflag.InvalidValueError), new(strconv.NumError)
	if !errors.As(err, &invalid) || !errors.As(err, &number) {
		return Usage(err)
	}
	value, name := invalid.GetValue(), invalid.GetFlag().Name
	switch {
	case number.Func == "ParseBool":
		return Usagef("%q for the flag --%s is neither true nor false", value, name)
	case errors.Is(number.Err, strconv.ErrRange):
		return Usagef("%s for the flag --%s is too large", value, name)
	case strings.HasPrefix(value, "-"):
		return Usagef("%s for the flag --%s is negative or not a whole number", value, name)
	}
	return Usagef("%q for the flag --%s is not a whole number", value, name)
}

// joined matches the end of a line before one that is not indented: errors.Join puts it between
// errors.
var joined = regexp.MustCompile(`(\S)\n(\S)`)

// report writes err as one line, even if its message has several.
func report(w io.Writer, cmd *cobra.Command, err error) {
	msg := strings.Join(strings.Fields(joined.ReplaceAllString(err.Error(), "$1; $2")), " ")
	line := cmd.CommandPath() + ": " + msg
	if Status(err) == StatusUsage {
		line += fmt.Sprintf(" (see '%s --help')", cmd.CommandPath())
	}
	fmt.Fprintln(w, line)
}

// sameRequest is the time in which further signals do not kill the process. For example, timeout(1)
// sends its signal twice: to the process and to its group.
const sameRequest = 200 * time.Millisecond

// signalContext returns a context that the first terminating signal cancels.
func signalContext() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		// Under nohup SIGHUP is ignored. Notify would undo that.
		signal.Notify(ch, syscall.SIGHUP)
	}
	go func() {
		select {
		case <-ch:
			cancel(ErrInterrupted)
			time.Sleep(sameRequest)
			signal.Stop(ch) // the next signal kills the process
		case <-ctx.Done():
			signal.Stop(ch)
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Interrupted reports whether a signal ended ctx.
func Interrupted(ctx context.Context) bool {
	return errors.Is(context.Cause(ctx), ErrInterrupted)
}

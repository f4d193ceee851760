package up

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

// logging has the flags about the log of the device and of its service.
type logging struct {
	level  logLevel
	format logFormat
	flags  *pflag.FlagSet
}

func (l *logging) register(fs *pflag.FlagSet) {
	l.level, l.format, l.flags = logOff, "text", fs
	fs.Var(&l.level, "log", "log connections, programs that join and leave, and failures to stderr: "+
		"debug, info, warn, error or off")
	fs.Var(&l.format, "log-format", "format of the log: text or json")
}

// check refuses a format without a log.
func (l *logging) check() error {
	if l.level == logOff && l.flags.Changed("log-format") {
		return cli.Usagef("--log-format has no effect, because the log is off: turn it on with " +
			"--log info")
	}
	return nil
}

// options returns the option that makes a device log to w.
func (l *logging) options(w io.Writer) []roce.Option {
	if l.level == logOff {
		return nil
	}
	o := &slog.HandlerOptions{Level: slog.Level(l.level)}
	var h slog.Handler = slog.NewTextHandler(w, o)
	if l.format == "json" {
		h = slog.NewJSONHandler(w, o)
	}
	return []roce.Option{roce.WithLogger(slog.New(h))}
}

// logLevel is a flag value: the lowest level that is logged.
type logLevel slog.Level

const logOff = logLevel(slog.LevelError + 1)

var logLevels = map[string]logLevel{"debug": logLevel(slog.LevelDebug),
	"info": logLevel(slog.LevelInfo), "warn": logLevel(slog.LevelWarn),
	"error": logLevel(slog.LevelError), "off": logOff}

// Set implements pflag.Value.
func (l *logLevel) Set(text string) error {
	v, ok := logLevels[text]
	if !ok {
		return fmt.Errorf("%q is not a level: write debug, info, warn, error or off", text)
	}
	*l = v
	return nil
}

// String implements pflag.Value.
func (l *logLevel) String() string {
	for text, v := range logLevels {
		if v == *l {
			return text
		}
	}
	return ""
}

// Type implements pflag.Value.
func (l *logLevel) Type() string { return "level" }

// Choices returns the levels, which shells complete.
func (l *logLevel) Choices() []string { return slices.Sorted(maps.Keys(logLevels)) }

// logFormat is a flag value: text or json.
type logFormat string

// Set implements pflag.Value.
func (f *logFormat) Set(text string) error {
	if text != "text" && text != "json" {
		return fmt.Errorf("%q is not a format of the log: write text or json", text)
	}
	*f = logFormat(text)
	return nil
}

// String implements pflag.Value.
func (f *logFormat) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *logFormat) Type() string { return "format" }

// Choices returns the formats, which shells complete.
func (f *logFormat) Choices() []string { return []string{"text", "json"} }

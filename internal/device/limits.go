package device

import (
	"fmt"
	"math"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

// Limits has the flags about what a program may use. The zero value means no limits.
type Limits struct {
	qps, mrs cli.Int
	memory   cli.Size
	rate     rateLimit
}

// largestCount is the largest value of a limit on objects. A device does not have more.
const largestCount = 1 << 24

// Register adds the flags. whose names the program, such as "each program".
func (l *Limits) Register(fs *pflag.FlagSet, whose string) {
	l.qps = cli.Int{Min: 1, Max: largestCount}
	l.mrs = cli.Int{Min: 1, Max: largestCount}
	l.memory = cli.Size{Min: 1, Max: math.MaxInt64}
	fs.Var(&l.qps, "program-qps", "limit of queue pairs of "+whose+" (default: 65536)")
	fs.Var(&l.mrs, "program-mrs", "limit of memory regions and windows of "+whose+
		" (default: 1048576)")
	fs.Var(&l.memory, "program-memory", "limit of registered memory and queues of "+whose+
		", such as 64MiB (default: none)")
	fs.Var(&l.rate, "program-rate", "limit of what "+whose+" sends, such as 500Mb/s (default: none)")
	cli.HideDefaults(fs, "program-qps", "program-mrs", "program-memory", "program-rate")
}

// Value returns the limits.
func (l *Limits) Value() roce.Limits {
	return roce.Limits{QPs: l.qps.N, MRs: l.mrs.N, Memory: uint64(l.memory.Bytes),
		Rate: uint64(l.rate)}
}

// rateLimit is a flag value: bytes per second, written as bits per second.
type rateLimit uint64

// Set implements pflag.Value.
func (r *rateLimit) Set(text string) error {
	bits, err := cli.ParseRate(text)
	if err != nil {
		return err
	}
	n := uint64(bits) / 8
	if n < roce.MinRate || n > roce.MaxRate {
		return fmt.Errorf("%s is out of range: choose 8kb/s to 8796Gb/s", text)
	}
	*r = rateLimit(n)
	return nil
}

// String implements pflag.Value.
func (r *rateLimit) String() string { return fmt.Sprintf("%db/s", 8*uint64(*r)) }

// Type implements pflag.Value.
func (r *rateLimit) Type() string { return "rate" }

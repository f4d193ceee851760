package device

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/roce"
)

// Transport selects how the RC queue pairs of a device recover lost packets and share the network.
// The zero value is the default of package roce.
type Transport struct {
	GoBackN    bool       `json:"go_back_n,omitempty"`
	Congestion Congestion `json:"congestion,omitempty"`
}

// Register adds the flags.
func (t *Transport) Register(fs *pflag.FlagSet) {
	f := fs.VarPF(unless{&t.GoBackN}, "selective-repeat", "",
		"retransmit only packets that are missing, if the peer supports it (gorxe does)")
	f.NoOptDefVal = "true" // the flag may be given without a value
	fs.Var(&t.Congestion, "congestion", "congestion control: adaptive, dcqcn or none")
}

// Options returns the options of a device.
func (t *Transport) Options() (opts []roce.Option) {
	if t.GoBackN {
		opts = append(opts, roce.WithSelectiveRepeat(false))
	}
	if t.Congestion != 0 {
		opts = append(opts, roce.WithCongestionControl(roce.CongestionControl(t.Congestion)))
	}
	return opts
}

// Congestion is an algorithm of congestion control. *Congestion is a flag value.
type Congestion roce.CongestionControl

// Set implements pflag.Value.
func (c *Congestion) Set(text string) error {
	v, err := roce.ParseCongestionControl(text)
	if err != nil {
		return fmt.Errorf("%q is not possible: choose one of adaptive, dcqcn, none", text)
	}
	*c = Congestion(v)
	return nil
}

// String implements pflag.Value.
func (c *Congestion) String() string { return roce.CongestionControl(*c).String() }

// Type implements pflag.Value.
func (c *Congestion) Type() string { return "name" }

// Choices returns the names, which shells complete.
func (c *Congestion) Choices() []string { return []string{"adaptive", "dcqcn", "none"} }

// unless is a boolean flag value that is true unless the variable is set.
type unless struct{ off *bool }

// Set implements pflag.Value.
func (u unless) Set(text string) error {
	on, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false", text)
	}
	*u.off = !on
	return nil
}

// String implements pflag.Value.
func (u unless) String() string { return strconv.FormatBool(u.off == nil || !*u.off) }

// Type implements pflag.Value.
func (u unless) Type() string { return "bool" }

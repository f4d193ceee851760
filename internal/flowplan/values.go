package flowplan

import (
	"fmt"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/flow"
)

// size, rate and span are values of a description.
type (
	size int
	rate int64
	span time.Duration
)

// scalar decodes a value with parse. Errors name the line.
func scalar[T any](n *yaml.Node, to *T, parse func(string) (T, error)) error {
	if n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: want one value", n.Line)
	}
	v, err := parse(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	*to = v
	return nil
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *size) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, s, func(text string) (size, error) {
		v, err := cli.ParseSize(text)
		return size(v), err
	})
}

// preempt is roce.ClassConfig.Preempt.
type preempt int

// UnmarshalYAML implements yaml.Unmarshaler.
func (p *preempt) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, p, func(text string) (preempt, error) {
		switch text {
		case "packet":
			return 0, nil
		case "end":
			return roce.PreemptAtEnd, nil
		}
		v, err := cli.ParseSize(text)
		if err != nil || v < 1 || v > flow.MaxSize {
			return 0, fmt.Errorf("preempt is %q: write packet, end, or a size such as 16KiB", text)
		}
		return preempt(v), nil
	})
}

// names is a name or a list of names.
type names []string

// UnmarshalYAML implements yaml.Unmarshaler.
func (l *names) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*l = names{n.Value}
		return nil
	}
	var list []string
	if err := n.Decode(&list); err != nil {
		return fmt.Errorf("line %d: want a name or a list of names", n.Line)
	}
	*l = list
	return nil
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (r *rate) UnmarshalYAML(n *yaml.Node) error { return scalar(n, r, parseRate) }

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *span) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, s, func(text string) (span, error) {
		d, err := time.ParseDuration(text)
		if text == "0" {
			err = nil
		}
		if err != nil {
			return 0, fmt.Errorf("%q is not a duration: write 500us, 33ms or 1s", text)
		}
		return span(d), nil
	})
}

// parseRate parses bits per second.
func parseRate(text string) (rate, error) {
	n, err := cli.ParseRate(text)
	return rate(n), err
}

// FormatRate formats bits per second: 978 Mb/s.
func FormatRate(bits int64) string {
	switch f := float64(bits); {
	case bits >= 1e9:
		return strconv.FormatFloat(f/1e9, 'g', 4, 64) + " Gb/s"
	case bits >= 1e6:
		return strconv.FormatFloat(f/1e6, 'g', 4, 64) + " Mb/s"
	default:
		return strconv.FormatFloat(f/1e3, 'g', 4, 64) + " kb/s"
	}
}

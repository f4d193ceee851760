package cli

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a flag value: a number of bytes within [Min, Max]. It accepts plain numbers and
// multiples: 64, 64k, 64K, 64KiB, 1m, 1MiB, 2G, 2GB. All multiples are powers of 1024, as in
// perftest.
type Size struct {
	Bytes    int64
	Min, Max int64
}

// Set implements pflag.Value.
func (s *Size) Set(text string) error {
	n, err := ParseSize(text)
	if errors.Is(err, errTooLarge) && s.Max < math.MaxInt64 {
		n, err = math.MaxInt64, nil // out of range as other sizes are
	}
	switch {
	case err != nil:
		return err
	case n >= s.Min && n <= s.Max:
	case s.Max == math.MaxInt64:
		return fmt.Errorf("%s is out of range: choose %s or more", text, FormatSize(s.Min))
	default:
		return fmt.Errorf("%s is out of range: choose %s to %s", text, FormatSize(s.Min),
			FormatSize(s.Max))
	}
	s.Bytes = n
	return nil
}

// String implements pflag.Value.
func (s *Size) String() string { return FormatSize(s.Bytes) }

// Type implements pflag.Value.
func (s *Size) Type() string { return "size" }

// Int returns the size as an int.
func (s *Size) Int() int { return int(s.Bytes) }

var sizeUnits = []struct {
	suffix string
	shift  uint
}{
	{"kib", 10}, {"mib", 20}, {"gib", 30},
	{"kb", 10}, {"mb", 20}, {"gb", 30},
	{"k", 10}, {"m", 20}, {"g", 30},
	{"b", 0},
}

// errTooLarge means that a text is a number that does not fit 64 bits.
var errTooLarge = errors.New("too large")

// ParseSize parses a number of bytes with an optional binary suffix.
func ParseSize(text string) (int64, error) {
	num, shift := strings.ToLower(strings.TrimSpace(text)), uint(0)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(num, u.suffix); ok {
			num, shift = strings.TrimSpace(rest), u.shift
			break
		}
	}
	n, err := strconv.ParseUint(num, 10, 63)
	switch {
	case errors.Is(err, strconv.ErrRange), n > math.MaxInt64>>shift:
		return 0, fmt.Errorf("%s is %w: the largest size is %d bytes", text, errTooLarge,
			int64(math.MaxInt64))
	case err != nil:
		return 0, fmt.Errorf("%q is not a size: write bytes, or a multiple such as 64k or 1MiB",
			text)
	}
	return int64(n << shift), nil
}

// FormatSize formats n in the largest binary unit that divides it: 64 KiB, 65 B.
func FormatSize(n int64) string {
	switch {
	case n != 0 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n != 0 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n != 0 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

var rateUnits = []struct {
	suffix string
	factor float64
}{{"kb/s", 1e3}, {"mb/s", 1e6}, {"gb/s", 1e9}, {"bit/s", 1}, {"b/s", 1}}

// ParseRate parses a number of bits per second, at least 1, with an optional decimal unit.
func ParseRate(text string) (int64, error) {
	num, factor := strings.ToLower(strings.TrimSpace(text)), 1.0
	for _, u := range rateUnits {
		if rest, ok := strings.CutSuffix(num, u.suffix); ok {
			num, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}
	v, err := strconv.ParseFloat(num, 64)
	if v *= factor; err != nil || !(v >= 1 && v < math.MaxInt64) {
		return 0, fmt.Errorf("%q is not a rate: write bits per second, 100Mb/s or 1Gb/s", text)
	}
	return int64(v), nil
}

// Duration is a flag value: a duration within [Min, Max]. A number without a unit is seconds and
// may have a fraction, as in ping and perftest. Otherwise the format is 300ms, 2s or 1m30s.
type Duration struct {
	D        time.Duration
	Min, Max time.Duration
}

// Set implements pflag.Value.
func (d *Duration) Set(text string) error {
	v, err := ParseDuration(text)
	if err != nil {
		return err
	}
	if v < d.Min || v > d.Max {
		return fmt.Errorf("%s is out of range: choose %v to %v", text, d.Min, d.Max)
	}
	d.D = v
	return nil
}

// String implements pflag.Value.
func (d *Duration) String() string { return d.D.String() }

// Type implements pflag.Value.
func (d *Duration) Type() string { return "duration" }

// ParseDuration parses a number of seconds or a Go duration.
func ParseDuration(text string) (time.Duration, error) {
	s := strings.TrimSpace(text)
	if sec, err := strconv.ParseFloat(s, 64); err == nil {
		switch most := math.MaxInt64 / float64(time.Second); {
		case math.Abs(sec) < most:
			return time.Duration(math.Round(sec * float64(time.Second))), nil
		case !math.IsNaN(sec):
			return 0, fmt.Errorf("%q is out of range: a duration is shorter than 292 years", text)
		}
	} else if d, err := time.ParseDuration(s); err == nil {
		return d, nil
	}
	return 0, fmt.Errorf("%q is not a duration: write seconds (0.5), or 300ms, 2s, 1m", text)
}

// Percent is a flag value: a percentage from 0 % to Max. The percent sign is required, because 0.5
// could mean 50 % or 0.5 %.
type Percent struct {
	Fraction float64
	Max      float64 // as a fraction
}

// Set implements pflag.Value.
func (p *Percent) Set(text string) error {
	f, err := ParsePercent(text)
	if err != nil {
		return err
	}
	if f < 0 || f > p.Max {
		return fmt.Errorf("%s is out of range: choose 0%% to %s", text, FormatPercent(p.Max))
	}
	p.Fraction = f
	return nil
}

// String implements pflag.Value.
func (p *Percent) String() string { return FormatPercent(p.Fraction) }

// Type implements pflag.Value.
func (p *Percent) Type() string { return "percent" }

// ParsePercent parses "1%" as 0.01. Only 0 needs no percent sign.
func ParsePercent(text string) (float64, error) {
	s, signed := strings.CutSuffix(strings.TrimSpace(text), "%")
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("%q is not a percentage: write it as 1%% or 0.5%%", text)
	}
	if !signed && f != 0 {
		return 0, fmt.Errorf("%q has no percent sign: write %s%%", text, text)
	}
	return f / 100, nil
}

// FormatPercent formats a fraction as a percentage: 0.01 is 1%.
func FormatPercent(f float64) string {
	// Rounding removes binary noise: 0.07*100 is not exactly 7.
	return strconv.FormatFloat(math.Round(f*1e8)/1e6, 'f', -1, 64) + "%"
}

// Int is a flag value: an integer within [Min, Max].
type Int struct {
	N        int
	Min, Max int
}

// Set implements pflag.Value.
func (i *Int) Set(text string) error {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && (n < i.Min || n > i.Max):
		return fmt.Errorf("%s is out of range: choose %d to %d", text, i.Min, i.Max)
	case err != nil:
		return fmt.Errorf("%q is not a whole number", text)
	}
	i.N = n
	return nil
}

// String implements pflag.Value.
func (i *Int) String() string { return strconv.Itoa(i.N) }

// Type implements pflag.Value.
func (i *Int) Type() string { return "int" }

// Choice is a flag value: one of a list of words. Case does not matter.
type Choice struct {
	Value string
	Words []string
}

// Set implements pflag.Value.
func (c *Choice) Set(text string) error {
	for _, w := range c.Words {
		if strings.EqualFold(w, text) {
			c.Value = w
			return nil
		}
	}
	return fmt.Errorf("%q is not possible: choose one of %s", text, strings.Join(c.Words, ", "))
}

// String implements pflag.Value.
func (c *Choice) String() string { return c.Value }

// Type implements pflag.Value.
func (c *Choice) Type() string { return "name" }

// Choices returns the words, which shells complete.
func (c *Choice) Choices() []string { return c.Words }

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "64": 64, "64b": 64, "64k": 65536, "64K": 65536, "64KiB": 65536, "64 kb": 65536,
		"1m": 1 << 20, "3MiB": 3 << 20, "2G": 2 << 30, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "k", "-1", "1.5k", "1t", "0x10", "9223372036854775808",
		"9007199254740992k", "8589934592g", "1kk"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %d; want an error", text, n)
		}
	}
}

func TestSizeRange(t *testing.T) {
	s := Size{Min: 1, Max: 1 << 20}
	if err := s.Set("1MiB"); err != nil || s.Int() != 1<<20 {
		t.Fatalf("Set(1MiB) = %v, %d", err, s.Bytes)
	}
	err := s.Set("2m")
	if err == nil || !strings.Contains(err.Error(), "1 B to 1 MiB") {
		t.Fatalf("Set(2m) = %v, want an error that names the range", err)
	}
	if s.Int() != 1<<20 {
		t.Error("a rejected value changed the flag")
	}
	err = s.Set("99999999999999999999k")
	if err == nil || !strings.Contains(err.Error(), "1 B to 1 MiB") {
		t.Errorf("Set(99999999999999999999k) = %v, want an error that names the range", err)
	}
	s.Max = math.MaxInt64
	if err := s.Set("8589934592g"); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("Set(8589934592g) = %v without an upper limit, want that it is too large", err)
	}
	if err := s.Set("0"); err == nil || !strings.HasSuffix(err.Error(), "choose 1 B or more") {
		t.Errorf("Set(0) = %v without an upper limit, want the lower one", err)
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"5": 5 * time.Second, "0.2": 200 * time.Millisecond, "300ms": 300 * time.Millisecond,
		"1m30s": 90 * time.Second, "0": 0,
	} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "five", "NaN", "5x"} {
		if d, err := ParseDuration(text); err == nil || !strings.Contains(err.Error(), "not a dur") {
			t.Errorf("ParseDuration(%q) = %v, %v; want that it is none", text, d, err)
		}
	}
	for _, text := range []string{"Inf", "1e300", "-9999999999"} {
		if d, err := ParseDuration(text); err == nil || !strings.Contains(err.Error(), "range") {
			t.Errorf("ParseDuration(%q) = %v, %v; want that it is out of range", text, d, err)
		}
	}
}

func TestParsePercent(t *testing.T) {
	for text, want := range map[string]float64{"1%": 0.01, "0.5 %": 0.005, "0": 0, "20%": 0.2,
		"100%": 1} {
		if got, err := ParsePercent(text); err != nil || math.Abs(got-want) > 1e-12 {
			t.Errorf("ParsePercent(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "%", "1", "0.01", "one%", "NaN%", "Inf%"} {
		if f, err := ParsePercent(text); err == nil {
			t.Errorf("ParsePercent(%q) = %v; want an error", text, f)
		}
	}
	p := Percent{Max: 0.5}
	if err := p.Set("7%"); err != nil || p.String() != "7%" {
		t.Errorf("Set(7%%) = %v, String() = %q", err, p.String())
	}
	for _, text := range []string{"51%", "-1%"} {
		if err := p.Set(text); err == nil || !strings.Contains(err.Error(), "0% to 50%") {
			t.Errorf("Set(%q) = %v; want an error that names the range", text, err)
		}
	}
}

func TestMTU(t *testing.T) {
	var m MTU
	for _, text := range []string{"", "0", "1500", "8192", "-256", "x"} {
		if err := m.Set(text); err == nil || !strings.Contains(err.Error(), "1024") {
			t.Errorf("MTU.Set(%q) = %v, want an error that lists the path MTUs", text, err)
		}
	}
	if err := m.Set("4096"); err != nil || m.N != 4096 || m.String() != "4096" {
		t.Errorf("MTU.Set(4096) = %v, N = %d", err, m.N)
	}
}

func TestIntAndChoice(t *testing.T) {
	i := Int{N: 1, Min: 1, Max: 8}
	for _, text := range []string{"0", "9", "x", "1.5", ""} {
		if err := i.Set(text); err == nil {
			t.Errorf("Int.Set(%q) = nil, want an error", text)
		}
	}
	for _, text := range []string{"99999999999999999999", "-99999999999999999999"} {
		if err := i.Set(text); err == nil || !strings.Contains(err.Error(), "choose 1 to 8") {
			t.Errorf("Int.Set(%s) = %v, want an error that names the range", text, err)
		}
	}
	if err := i.Set("8"); err != nil || i.N != 8 {
		t.Errorf("Int.Set(8) = %v, %d", err, i.N)
	}
	c := Choice{Value: "auto", Words: []string{"auto", "native"}}
	if err := c.Set("Native"); err != nil || c.Value != "native" {
		t.Errorf("Choice.Set(Native) = %v, %q", err, c.Value)
	}
	if err := c.Set("fast"); err == nil || !strings.Contains(err.Error(), "auto, native") {
		t.Errorf("Choice.Set(fast) = %v; want an error that lists the choices", err)
	}
}

func TestStatus(t *testing.T) {
	failure := errors.New("the peer has closed the connection")
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, StatusOK},
		{failure, StatusFailure},
		{Usage(nil), StatusOK},
		{Usage(failure), StatusUsage},
		{fmt.Errorf("perf: %w", Usagef("-n is negative")), StatusUsage},
	} {
		if got := Status(c.err); got != c.want {
			t.Errorf("Status(%v) = %d, want %d", c.err, got, c.want)
		}
	}
	if !errors.Is(Usage(failure), failure) {
		t.Error("Usage(err) does not wrap err")
	}
}

// A command that a signal has ended says so, and not which call was canceled.
func TestInterruptedError(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	canceled, other := fmt.Errorf("waiting for the peer: %w", context.Canceled), errors.New("other")
	if err := interrupted(ctx, canceled); err != canceled {
		t.Errorf("before a signal: %v, want %v", err, canceled)
	}
	cancel(ErrInterrupted)
	for err, want := range map[error]error{nil: nil, canceled: ErrInterrupted, other: other} {
		if got := interrupted(ctx, err); got != want {
			t.Errorf("interrupted(%v) = %v, want %v", err, got, want)
		}
	}
}

// The errors of flags of pflag name the flag and the value, not the function of package strconv.
func TestFlagError(t *testing.T) {
	fs := pflag.NewFlagSet("recv", pflag.ContinueOnError)
	fs.Bool("sync", true, "")
	fs.Uint8("n", 0, "")
	for arg, want := range map[string]string{
		"--sync=maybe": `"maybe" for the flag --sync is neither true nor false`,
		"--n=maybe":    `"maybe" for the flag --n is not a whole number`,
		"--n=-1":       "-1 for the flag --n is negative or not a whole number",
		"--n=256":      "256 for the flag --n is too large",
		"--other":      "unknown flag: --other",
	} {
		err := flagError(fs.Parse([]string{arg}))
		if Status(err) != StatusUsage || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "strconv") {
			t.Errorf("%s: %v, want a usage error with %q", arg, err, want)
		}
	}
}

// An error with several lines is printed as one line.
func TestReportIsOneLine(t *testing.T) {
	var out bytes.Buffer
	report(&out, &cobra.Command{Use: "gorxe"}, errors.New("first\n\tsecond\n"))
	if got := out.String(); got != "gorxe: first second\n" {
		t.Errorf("got %q", got)
	}
	out.Reset()
	report(&out, &cobra.Command{Use: "gorxe"}, errors.Join(errors.New("first"), errors.New("second")))
	if got := out.String(); got != "gorxe: first; second\n" {
		t.Errorf("got %q", got)
	}
	out.Reset()
	report(&out, &cobra.Command{Use: "gorxe"}, Usagef("bad flag"))
	if got := out.String(); got != "gorxe: bad flag (see 'gorxe --help')\n" {
		t.Errorf("got %q", got)
	}
}

func TestTable(t *testing.T) {
	tab := Table{Columns: []Column{{"op", Left}, {"p50 µs", Right}, {"note", Left}}}
	tab.Row("WRITE", 3.5)
	tab.Row("µ", 12.25, "x")
	var out bytes.Buffer
	if err := tab.Write(&out); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"op     p50 µs  note\n" +
		"WRITE     3.5\n" +
		"µ       12.25  x\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestLatency(t *testing.T) {
	l := NewLatency()
	if l.Mean() != 0 || l.StdDev() != 0 || l.Percentile(99) != 0 {
		t.Error("an empty Latency returns values other than 0")
	}
	for i := 1; i <= 1000; i++ {
		l.Record(time.Duration(i) * time.Microsecond)
	}
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if diff := float64(got-want) / float64(want); diff > 0.001 || diff < -0.001 {
			t.Errorf("%s = %v, want %v within 0.1 %%", what, got, want)
		}
	}
	near("p50", l.Percentile(50), 500*time.Microsecond)
	near("p99", l.Percentile(99), 990*time.Microsecond)
	near("mean", l.Mean(), 500500*time.Nanosecond)
	near("standard deviation", l.StdDev(), 288675*time.Nanosecond)
	if l.Min() != time.Microsecond || l.Max() != time.Millisecond || l.Count() != 1000 {
		t.Errorf("Min() = %v, Max() = %v, Count() = %d", l.Min(), l.Max(), l.Count())
	}
	l.Record(time.Hour) // out of the histogram's range: exact in Max, clamped in percentiles
	if l.Max() != time.Hour || l.Percentile(100) > time.Hour {
		t.Errorf("Max() = %v, Percentile(100) = %v, want 1h and at most 1h", l.Max(),
			l.Percentile(100))
	}
	if n := testing.AllocsPerRun(100, func() { l.Record(time.Millisecond) }); n != 0 {
		t.Errorf("Record() allocates %v times, want 0", n)
	}
}

func TestCount(t *testing.T) {
	if got := Count(1, "queue") + ", " + Count(4, "queue"); got != "1 queue, 4 queues" {
		t.Errorf("Count() = %q", got)
	}
}

func TestNamed(t *testing.T) {
	check := Named("OP", "[HOST]")
	for n, want := range map[int]string{0: "OP is missing", 1: "", 2: "", 3: "too many"} {
		err := check(nil, slices.Repeat([]string{"x"}, n))
		if want == "" && err != nil || want != "" &&
			(Status(err) != StatusUsage || !strings.Contains(err.Error(), want)) {
			t.Errorf("Named() with %d arguments = %v, want %q", n, err, want)
		}
	}
	if err := check(nil, []string{"a", ""}); Status(err) != StatusUsage ||
		err.Error() != "HOST is empty" {
		t.Errorf("Named() with an empty argument = %v, want a usage error", err)
	}
}

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Align is the alignment of a table column.
type Align uint8

// The alignments.
const (
	Left Align = iota
	Right
)

// Column is a column of a Table.
type Column struct {
	Title string
	Align Align
}

// Table collects rows and writes them in aligned columns. Set Columns before the first call of Row.
type Table struct {
	Columns []Column
	rows    [][]string
}

// Row adds a row. Cells are formatted with %v; missing cells are empty.
func (t *Table) Row(cells ...any) {
	row := make([]string, len(t.Columns))
	for i := range min(len(cells), len(row)) {
		row[i] = fmt.Sprint(cells[i])
	}
	t.rows = append(t.rows, row)
}

// Write writes the titles and rows with two spaces between columns.
func (t *Table) Write(w io.Writer) error {
	titles := make([]string, len(t.Columns))
	width := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		titles[i] = c.Title
	}
	all := append([][]string{titles}, t.rows...)
	for _, row := range all {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line.WriteString("  ")
			}
			if t.Columns[i].Align == Right {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// JSON writes v as one line of JSON.
func JSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Count formats a number of things: "1 queue", "2 queues".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Bar is a progress bar. It is invisible if the output is not a terminal.
type Bar struct{ b *progressbar.ProgressBar }

// NewBar creates a progress bar that ends at total, or at an unknown value if total is -1. If bytes
// is set the unit is bytes and the bar shows the rate.
func NewBar(w io.Writer, total int64, description string, bytes bool) *Bar {
	const width = 30
	opts := []progressbar.Option{
		progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(width),
		progressbar.OptionSetVisibility(Visible(w)),
		progressbar.OptionSetDescription(description),
		progressbar.OptionThrottle(100 * time.Millisecond),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetRenderBlankState(false),
	}
	if bytes {
		opts = append(opts, progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true))
	}
	return &Bar{progressbar.NewOptions64(total, opts...)}
}

// Errors of a terminal must not make a command fail, so the methods of Bar return none.

// Describe changes the description.
func (b *Bar) Describe(text string) { b.b.Describe(text) }

// Add moves the bar by n.
func (b *Bar) Add(n int) { _ = b.b.Add(n) }

// Set moves the bar to n of total, -1 if the total is unknown.
func (b *Bar) Set(n, total int64) {
	if b.b.GetMax64() != total {
		b.b.ChangeMax64(total)
	}
	_ = b.b.Set64(n)
}

// Visible reports whether a bar on w is visible.
func Visible(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Clear removes the bar from the terminal.
func (b *Bar) Clear() { _ = b.b.Clear() }

// Output is a writer for commands that print line by line. It keeps the first error, so that a
// result that could not be written is a failure. It is safe for concurrent use.
type Output struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// NewOutput returns an Output that writes to w.
func NewOutput(w io.Writer) *Output { return &Output{w: w} }

// Write implements io.Writer.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.w.Write(b)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// Result returns the error of a command: err or, if it is nil, the first one of a Write.
func (o *Output) Result(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		return o.err
	}
	return err
}

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Align says to which side a table's column leans.
type Align uint8

// The two sides.
const (
	Left Align = iota
	Right
)

// Column is one column of a Table.
type Column struct {
	Title string
	Align Align
}

// Table collects rows and writes them with aligned columns. Its zero value with
// Columns set is ready.
type Table struct {
	Columns []Column
	rows    [][]string
}

// Row adds one row; cells are formatted with %v. Missing cells stay empty.
func (t *Table) Row(cells ...any) {
	row := make([]string, len(t.Columns))
	for i := range min(len(cells), len(row)) {
		row[i] = fmt.Sprint(cells[i])
	}
	t.rows = append(t.rows, row)
}

// Write writes titles and rows, columns two spaces apart.
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

// Count writes n of a thing: "1 queue", "2 queues".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

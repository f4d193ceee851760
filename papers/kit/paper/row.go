package paper

import (
	"fmt"
	"io"
	"strconv"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
)

// Row is one line of results: a method against its baseline, one value of each a round, and what the paper says.
type Row struct {
	Name     string
	Unit     string
	Baseline string    // name of the baseline
	Values   []float64 // of the method, one a round
	Base     []float64 // of the baseline, in the same rounds
	Paper    *float64  // the paper's ratio; nil: it states none
	// PaperValue and PaperBase are the paper's own figures behind it, in Unit; nil: it states none.
	PaperValue, PaperBase *float64
	Note                  string // what else is known, for people
}

// Result is a Row as JSON: the shape of "gorxe bench --json", and what the paper says.
type Result struct {
	kit.Row
	// Paper is the paper's ratio, null where it states none.
	Paper      *float64 `json:"paper"`
	PaperValue *float64 `json:"paper_value,omitempty"`
	PaperBase  *float64 `json:"paper_baseline_value,omitempty"`
	Note       string   `json:"note,omitempty"`
}

// Says is a pointer to a figure of the paper's.
func Says(f float64) *float64 { return &f }

// Result sums up a row.
func (r *Row) Result() Result {
	return Result{
		Row:   kit.Compare(r.Name, r.Unit, r.Baseline, r.Values, r.Base),
		Paper: r.Paper, PaperValue: r.PaperValue, PaperBase: r.PaperBase, Note: r.Note,
	}
}

// Results sums up all rows.
func Results(rows []Row) []Result {
	list := make([]Result, len(rows)) // an empty array in JSON, never null
	for i := range rows {
		list[i] = rows[i].Result()
	}
	return list
}

// WarnScattered says which of the rows have no ratio, if there are such.
func WarnScattered(w io.Writer, rows []Row) {
	kit.WarnScattered(w, Results(rows), func(r *Result) *kit.Row { return &r.Row })
}

// WriteTable shows rows to people: method is the title of the values' column.
func WriteTable(w io.Writer, method string, rows []Row) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "experiment"}, {Title: method, Align: cli.Right}, {Title: "unit"}, {Title: "against"}, {Title: "has", Align: cli.Right},
		{Title: "ratio", Align: cli.Right}, {Title: "spread", Align: cli.Right}, {Title: "paper", Align: cli.Right}, {Title: "more"},
	}}
	for i := range rows {
		r := rows[i].Result()
		ratio := "-"
		if r.BaselineValue != 0 {
			ratio = r.RatioText(3)
		}
		t.Row(r.Name, number(r.Value), r.Unit, r.Baseline, number(r.BaselineValue),
			ratio, fmt.Sprintf("%.0f%%", r.Spread*100), r.paper(), r.Note)
	}
	return t.Write(w)
}

// paper is the paper's ratio, or its two figures if they give none.
func (r *Result) paper() string {
	switch {
	case r.Paper != nil:
		return fmt.Sprintf("%.3f", *r.Paper)
	case r.PaperValue != nil && r.PaperBase != nil:
		return number(*r.PaperValue) + " to " + number(*r.PaperBase)
	}
	return "-"
}

// number shows a figure with some three digits that count.
func number(f float64) string {
	if f >= 100 || f <= -100 {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'g', 4, 64)
}

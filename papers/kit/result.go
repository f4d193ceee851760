package kit

import (
	"fmt"
	"io"
	"strconv"

	"github.com/gorxe/gorxe/internal/cli"
)

// Series are the measured values of a method and of its baseline, one of each per round, and the
// figures of the paper.
type Series struct {
	Name     string
	Unit     string
	Baseline string    // name of the baseline
	Values   []float64 // of the method
	Base     []float64 // of the baseline

	Paper                 *float64 // the paper's ratio; nil if it gives none
	PaperValue, PaperBase *float64 // the paper's values in Unit; nil if it gives none

	Note string // further text for the table
}

// Result is the JSON form of a Series.
type Result struct {
	Row
	Paper      *float64 `json:"paper"` // the paper's ratio, null if it gives none
	PaperValue *float64 `json:"paper_value,omitempty"`
	PaperBase  *float64 `json:"paper_baseline_value,omitempty"`
	Note       string   `json:"note,omitempty"`
}

// Says returns a pointer to a figure of a paper.
func Says(f float64) *float64 { return &f }

// Results summarizes all series. The list is never nil, so that its JSON form is an array.
func Results(list []Series) []Result {
	results := make([]Result, len(list))
	for i := range list {
		s := &list[i]
		results[i] = Result{
			Row:   Compare(s.Name, s.Unit, s.Baseline, s.Values, s.Base),
			Paper: s.Paper, PaperValue: s.PaperValue, PaperBase: s.PaperBase, Note: s.Note,
		}
	}
	return results
}

// WarnScatteredResults warns if results have no ratio because their rounds differ too much.
func WarnScatteredResults(w io.Writer, list []Result) {
	WarnScattered(w, list, func(r *Result) *Row { return &r.Row })
}

// WriteTable writes results as a table. method is the title of the column with the values.
func WriteTable(w io.Writer, method string, list []Result) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "experiment"}, {Title: method, Align: cli.Right}, {Title: "unit"},
		{Title: "baseline"},
		{Title: "value", Align: cli.Right}, {Title: "ratio", Align: cli.Right},
		{Title: "spread", Align: cli.Right}, {Title: "paper", Align: cli.Right}, {Title: "details"},
	}}
	for i := range list {
		r := &list[i]
		ratio := "-"
		if r.BaselineValue != 0 {
			ratio = r.RatioText(3)
		}
		t.Row(r.Name, number(r.Value), r.Unit, r.Baseline, number(r.BaselineValue),
			ratio, r.SpreadText(), r.paper(), r.Note)
	}
	return t.Write(w)
}

// paper returns the paper's ratio, or its two values if they have no ratio.
func (r *Result) paper() string {
	switch {
	case r.Paper != nil:
		return fmt.Sprintf("%.3f", *r.Paper)
	case r.PaperValue != nil && r.PaperBase != nil:
		return number(*r.PaperValue) + " to " + number(*r.PaperBase)
	}
	return "-"
}

// Short formats f with three significant digits, or as an integer from 100 on.
func Short(f float64) string {
	if f >= 100 {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.3g", f)
}

// number formats f with four significant digits, or as an integer from 100 on.
func number(f float64) string {
	if f >= 100 || f <= -100 {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'g', 4, 64)
}

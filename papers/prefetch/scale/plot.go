package scale

import (
	"fmt"

	"github.com/gorxe/gorxe/papers/kit/paper"
)

// panels draws a panel for QPs and one for MRs, with a curve for each order and window.
func panels(list []Result) []paper.Panel {
	var all []paper.Panel
	for _, p := range []struct{ name, title, x string }{
		{nameQPs, "64 B WRITEs over many QPs", "QPs"}, {nameMRs, "64 B WRITEs over many memory regions", "MRs"},
	} {
		c := &paper.Curves{Title: p.title, X: p.x, Y: unitRate, LogX: true, ZeroY: true}
		at := map[string]int{}
		for i := range list {
			r := &list[i]
			if r.Name != p.name {
				continue
			}
			name := fmt.Sprintf("%s, window %d", r.Order, r.Prefetch)
			if r.Prefetch == 0 {
				name = r.Order + ", no prefetch"
			}
			k, known := at[name]
			if !known {
				k = len(c.Lines)
				at[name] = k
				c.Lines = append(c.Lines, paper.Line{Name: name, Dashed: r.Prefetch == 0})
			}
			x := r.QPs
			if p.name == nameMRs {
				x = r.MRs
			}
			c.Lines[k].X, c.Lines[k].Y = append(c.Lines[k].X, float64(x)), append(c.Lines[k].Y, r.Value)
		}
		if len(c.Lines) > 0 {
			all = append(all, c)
		}
	}
	return all
}

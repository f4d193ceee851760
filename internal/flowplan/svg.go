package flowplan

import (
	"fmt"
	"html"
	"io"
	"strings"
	"time"
)

// Sizes of a drawing, in pixels.
const (
	svgLeft   = 150
	svgWidth  = 900
	svgRow    = 34
	svgBar    = 18
	svgTop    = 40
	svgBottom = 40
	svgRight  = 30
	svgTicks  = 10
)

var svgColors = []string{"#1f6fb4", "#d96c1e", "#5b8c3a", "#8a5aa5", "#b23a48", "#3a8c8c",
	"#8c7a3a", "#5a5a5a"}

// SVG draws the timeline: one row per flow, a bar for each part, an arrow up for each arrival and a
// red line at each deadline that is exceeded.
func (t *Timeline) SVG(w io.Writer) error {
	var b strings.Builder
	height := svgTop + svgRow*len(t.Plan.Flows) + svgBottom
	width := svgLeft + svgWidth + svgRight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" `+
		`viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height, width,
		height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="22" font-size="14">Messages on a link of %s, %v</text>`+"\n",
		svgLeft, html.EscapeString(FormatRate(t.Plan.Link.Rate)), t.Length)
	t.axis(&b, height-svgBottom)
	for i, f := range t.Plan.Flows {
		y := svgTop + i*svgRow
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s (%d)</text>`+"\n", svgLeft-8,
			y+svgRow-10, html.EscapeString(f.Name), f.Priority)
		fmt.Fprintf(&b, `<path d="M%d %dh%d" stroke="#ccc"/>`+"\n", svgLeft, y+svgRow-4, svgWidth)
	}
	for _, p := range t.Parts {
		y := svgTop + p.Flow*svgRow + svgRow - 4 - svgBar
		x := t.x(p.Start)
		fmt.Fprintf(&b, `<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s" stroke="white" `+
			`stroke-width="0.3"/>`+"\n", x, y, max(t.x(min(p.End, t.Length))-x, 0.3), svgBar,
			svgColors[p.Flow%len(svgColors)])
	}
	for _, m := range t.Marks {
		if m.At > t.Length {
			continue
		}
		base := svgTop + m.Flow*svgRow + svgRow - 4
		if m.Late {
			fmt.Fprintf(&b, `<path d="M%.2f %dv-%d" stroke="red" stroke-width="2"/>`+"\n",
				t.x(m.At),
				base, svgRow-6)
			continue
		}
		fmt.Fprintf(&b, `<path d="M%.2f %dv-%dm-3 4l3 -4l3 4" stroke="black" fill="none" `+
			`stroke-width="0.7"/>`+"\n", t.x(m.At), base, svgBar+6)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// axis draws the time axis.
func (t *Timeline) axis(b *strings.Builder, y int) {
	fmt.Fprintf(b, `<path d="M%d %dh%d" stroke="black"/>`+"\n", svgLeft, y+4, svgWidth)
	for i := range svgTicks + 1 {
		at := t.Length * time.Duration(i) / svgTicks
		fmt.Fprintf(b, `<path d="M%.2f %dv5" stroke="black"/>`+"\n", t.x(at), y+4)
		fmt.Fprintf(b, `<text x="%.2f" y="%d" text-anchor="middle">%v</text>`+"\n", t.x(at), y+24,
			at.Round(time.Microsecond))
	}
}

func (t *Timeline) x(at time.Duration) float64 {
	return svgLeft + svgWidth*float64(at)/float64(t.Length)
}

package kit

import (
	"fmt"
	"html"
	"regexp"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
)

var svgText = regexp.MustCompile(`<text ([^>]*font-size:([0-9.]+)px[^>]*)>([^<]*)</text>`)

// fixTextWidths gives every text of an SVG plot the width that the layout assumed. A viewer
// without the plot's font then scales another font, and labels do not grow into the axes beside
// them.
func fixTextWidths(svg []byte) []byte {
	return svgText.ReplaceAllFunc(svg, func(element []byte) []byte {
		m := svgText.FindSubmatch(element)
		size, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			return element
		}
		face := font.DefaultCache.Lookup(plot.DefaultFont, font.Points(size))
		width := face.Width(html.UnescapeString(string(m[3]))).Points()
		return fmt.Appendf(nil,
			`<text textLength="%.1f" lengthAdjust="spacingAndGlyphs" %s>%s</text>`,
			width, m[1], m[3])
	})
}

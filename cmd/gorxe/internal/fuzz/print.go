package fuzz

import (
	"fmt"
	"io"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/packetfuzz"
)

const bytesPerMB = 1e6

// write prints the report as text.
func write(w io.Writer, r *packetfuzz.Report) error {
	kinds := cli.Table{Columns: []cli.Column{{Title: "cases", Align: cli.Right},
		{Title: "frames", Align: cli.Right}, {Title: "kind"}}}
	for _, k := range r.Kinds {
		kinds.Row(k.Cases, k.Frames, k.Name)
	}
	answers := cli.Table{Columns: []cli.Column{{Title: "packets", Align: cli.Right},
		{Title: "answers of the host"}}}
	for _, a := range r.Answers {
		answers.Row(a.Packets, a.Name)
	}
	for _, t := range []*cli.Table{&kinds, &answers} {
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		if err := t.Write(w); err != nil {
			return err
		}
	}
	state := "The host still serves."
	if !r.Serving {
		state = "The host does not serve."
	}
	_, err := fmt.Fprintf(w, `
%d cases, %d frames (%d not sent: wrong length), %.1f MB in %.1f s
%d connections attacked, %d ended by the host, %d not opened
%s %s, the last good one after case %d.
`, r.Cases, r.Frames, r.NotSent, float64(r.Bytes)/bytesPerMB, r.Seconds, r.Sessions, r.Ended,
		r.Refused, state, cli.Count(int(r.Checks), "check"), r.First+r.LastCheck)
	return err
}

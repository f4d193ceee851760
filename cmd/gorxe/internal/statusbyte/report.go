package statusbyte

import (
	"fmt"
	"io"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/streams"
)

// printReport writes a report as JSON or as a table.
func printReport(w io.Writer, r *streams.Report, asJSON bool) error {
	if asJSON {
		return cli.JSON(w, r)
	}
	t := cli.Table{Columns: []cli.Column{
		{Title: "device", Align: cli.Right}, {Title: "packets", Align: cli.Right},
		{Title: "bytes", Align: cli.Right}, {Title: "gaps", Align: cli.Right},
		{Title: "duplicates", Align: cli.Right}, {Title: "SHA-256"},
	}}
	var bytes uint64
	for i := range r.Devices {
		d := &r.Devices[i]
		bytes += d.Bytes
		t.Row(d.Device, d.Packets, d.Bytes, d.Gaps, d.Duplicates, d.SHA256)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	for _, problem := range []struct {
		n    uint64
		what string
	}{
		{r.Unknown, "packets of devices that are not accepted (--devices) were dropped"},
		{r.BadStatus, "status bytes had invalid values; their blocks were not used"},
		{r.BadHeader, "blocks had invalid headers and were dropped"},
		{r.Overwrites, "blocks were overwritten while they were in use"},
	} {
		if problem.n > 0 {
			if _, err := fmt.Fprintf(w, "\n%d %s.", problem.n, problem.what); err != nil {
				return err
			}
		}
	}
	rate := ""
	if r.Seconds > 0 {
		rate = fmt.Sprintf(", %.3f Gb/s", float64(bytes)*8/r.Seconds/1e9)
	}
	_, err := fmt.Fprintf(w, "\n%s, peer %s, %d blocks of %s: %d bytes in %.3f s%s\n",
		r.Datapath, r.Peer, r.Blocks, cli.FormatSize(int64(r.BlockSize)), bytes, r.Seconds, rate)
	return err
}

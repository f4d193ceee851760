package statusbyte

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/gorxe/gorxe/internal/cli"
)

// deviceReport is what became of one device's stream.
type deviceReport struct {
	Device     int    `json:"device"`
	Packets    uint64 `json:"packets"`
	Bytes      uint64 `json:"bytes"`
	Gaps       uint64 `json:"gaps"`
	Duplicates uint64 `json:"duplicates"`
	SHA256     string `json:"sha256"`             // of the data, one packet behind the other
	Lost       uint64 `json:"unstored,omitempty"` // packets that arrived and could not be stored
}

// report is the object with which recv and send end.
type report struct {
	Peer      string         `json:"peer"`
	Datapath  string         `json:"datapath"`
	Blocks    int            `json:"blocks"`
	BlockSize int            `json:"block_size"`
	Seconds   float64        `json:"seconds"` // from the first packet to the last
	Devices   []deviceReport `json:"devices"`

	BadStatus  uint64 `json:"bad_status"`           // recv: status values that no sender may write; send: that no receiver may
	BadHeader  uint64 `json:"bad_header,omitempty"` // recv: blocks that cannot be
	Unknown    uint64 `json:"unknown_device"`       // recv: packets of devices that are not taken
	Overwrites uint64 `json:"overwrites,omitempty"` // recv: blocks that the peer wrote to while they were in use
	Syncs      uint64 `json:"syncs,omitempty"`      // send: READs of the status array
}

// tally counts one device's stream.
type tally struct {
	deviceReport
	hash hash.Hash
}

// tallies are those of all devices that have one.
type tallies [256]*tally

func (t *tallies) of(device uint8) *tally {
	if t[device] == nil {
		t[device] = &tally{deviceReport: deviceReport{Device: int(device)}, hash: sha256.New()}
	}
	return t[device]
}

func (t *tally) add(data []byte) {
	t.Packets++
	t.Bytes += uint64(len(data))
	_, _ = t.hash.Write(data) // never fails
}

func (t *tallies) reports() []deviceReport {
	list := []deviceReport{} // an empty array in JSON, never null
	for _, d := range t {
		if d != nil {
			d.SHA256 = hex.EncodeToString(d.hash.Sum(nil))
			list = append(list, d.deviceReport)
		}
	}
	return list
}

// write shows the report: to scripts as one object, to people as a table.
func (r *report) write(w io.Writer, asJSON bool) error {
	if asJSON {
		return cli.JSON(w, r)
	}
	t := cli.Table{Columns: []cli.Column{
		{Title: "device", Align: cli.Right}, {Title: "packets", Align: cli.Right}, {Title: "bytes", Align: cli.Right}, {Title: "gaps", Align: cli.Right},
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
	for _, odd := range []struct {
		n    uint64
		what string
	}{
		{r.Unknown, "packets of devices that are not taken (--devices) were dropped"},
		{r.BadStatus, "status bytes had values that cannot be; their blocks were not used"},
		{r.BadHeader, "blocks had headers that cannot be, and were dropped"},
		{r.Overwrites, "blocks were written to while they were in use"},
	} {
		if odd.n > 0 {
			if _, err := fmt.Fprintf(w, "\n%d %s.", odd.n, odd.what); err != nil {
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

package copyflags

import (
	"strconv"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/filecopy"
)

// Name returns a path or a text of a peer for a terminal: in quotes, if it contains characters that
// cannot be printed.
func Name(path string) string { return filecopy.Printable(path) }

// Bytes formats a number of bytes: 1.5 GiB, 12 B.
func Bytes(n int64) string {
	f, unit := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for f >= 1024 && unit < len(units)-1 {
		f, unit = f/1024, unit+1
	}
	digits := 1
	if unit == 0 || f >= 100 {
		digits = 0
	}
	return strconv.FormatFloat(f, 'f', digits, 64) + " " + units[unit]
}

// Rate formats bytes per second as bits per second.
func Rate(bytes int64, seconds float64) string {
	if seconds <= 0 {
		return "0 Mb/s"
	}
	bits := float64(bytes) * 8 / seconds
	if bits >= 1e9 {
		return strconv.FormatFloat(cli.Round(bits/1e9, 2), 'f', -1, 64) + " Gb/s"
	}
	return strconv.FormatFloat(cli.Round(bits/1e6, 1), 'f', -1, 64) + " Mb/s"
}

package record

import (
	"encoding/binary"
	"math"

	"github.com/gorxe/gorxe/internal/filecopy/extent"
)

// Verdict is what the sink says about an entry.
type Verdict uint8

// The verdicts. Each entry gets one of Want, Skipped, Done and Failed. After Want, it gets Done or
// Failed.
const (
	Want    Verdict = 1 + iota // send the file
	Skipped                    // the sink needs nothing
	Done                       // the entry is stored
	Failed                     // the entry cannot be stored
	Deleted                    // the sink has deleted something of its own
)

// Reason says why the sink skipped an entry.
type Reason uint8

// The reasons.
const (
	Unchanged Reason = 1 + iota // the sink has a file of the same size and time
	Exists                      // files are not overwritten
	Newer                       // the sink's file is as new or newer
	DryRun                      // it would be transferred
)

// String returns words for messages.
func (r Reason) String() string {
	switch r {
	case Unchanged:
		return "unchanged"
	case Exists:
		return "exists"
	case Newer:
		return "newer"
	case DryRun:
		return "to send"
	}
	return "unknown"
}

const (
	// MaxHave is the number of ranges of one file that an answer can name.
	MaxHave = 128
	// MaxAnswer is the size of the largest answer.
	MaxAnswer = 1 + binary.MaxVarintLen64 + 2 + MaxHave*(2*binary.MaxVarintLen64+4)
)

// Answer is an answer of the sink.
type Answer struct {
	Number  uint64 // of the entry; of the directory for Deleted
	Verdict Verdict
	Reason  Reason          // of Skipped
	Have    []extent.Extent // of Want: verified ranges that need not be sent
	Text    string          // of Failed, or the path below the directory that was Deleted
}

// AppendAnswer appends an answer to a message. It shortens the text to MaxText, and Have to MaxHave
// ranges.
func AppendAnswer(b []byte, a *Answer) []byte {
	b = binary.AppendUvarint(append(b, byte(a.Verdict)), a.Number)
	switch a.Verdict {
	case Want:
		have := a.Have[:min(len(a.Have), MaxHave)]
		b = binary.AppendUvarint(b, uint64(len(have)))
		at := int64(0)
		for _, e := range have {
			b = binary.AppendUvarint(b, uint64(e.Offset-at))
			b = binary.AppendUvarint(b, uint64(e.Length))
			b = binary.BigEndian.AppendUint32(b, e.CRC)
			at = e.End()
		}
	case Skipped:
		b = append(b, byte(a.Reason))
	case Failed, Deleted:
		b = appendText(b, cut(a.Text, MaxText))
	}
	return b
}

// NextAnswer decodes the first answer of a message into a.
func NextAnswer(msg []byte, a *Answer) (rest []byte, err error) {
	f := fields{data: msg}
	*a = Answer{Verdict: Verdict(f.u8()), Number: f.number()}
	switch a.Verdict {
	case Want:
		n := f.number()
		if n > MaxHave {
			return nil, formatError("%d ranges of a file, want at most %d", n, MaxHave)
		}
		at := uint64(0)
		for range n {
			gap, length := f.number(), f.number()
			e := extent.Extent{Offset: int64(at + gap), Length: int64(length), CRC: f.u32()}
			if gap > math.MaxInt64-at || length > math.MaxInt64-at-gap {
				return nil, formatError("a range of %d bytes", length)
			}
			at += gap + length
			a.Have = append(a.Have, e)
		}
	case Skipped:
		a.Reason = Reason(f.u8())
	case Done:
	case Failed, Deleted:
		a.Text = f.text(MaxText)
	default:
		return nil, formatError("verdict %d", a.Verdict)
	}
	if f.short {
		return nil, formatError("an answer is not complete")
	}
	return f.data, nil
}

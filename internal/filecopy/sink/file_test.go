package sink

import (
	"errors"
	"testing"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// A source cannot make the sink remember an unlimited number of ranges of a file.
func TestMaxRanges(t *testing.T) {
	f := &file{Entry: record.Entry{Kind: record.File, Size: 1 << 40}, sink: new(Sink),
		part: new(part.Part), state: asked}
	for i := range int64(maxRanges) {
		if err := f.set.Add(extent.Extent{Offset: 2 * i, Length: 1}); err != nil {
			t.Fatal(err)
		}
	}
	data := []byte{1}
	err := f.writeBlock(&filecopy.Block{Data: data, Len: 1, Offset: 4 * maxRanges,
		CRC: extent.Sum(data)})
	if !errors.Is(err, record.ErrFormat) {
		t.Errorf("writeBlock() = %v, want ErrFormat", err)
	}
}

package statusbyte

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/safefile"
)

// partFile is the name of a file before its first packet is complete. Afterwards it is followed by
// three numbers (see partName), which tell a later Store which bytes are complete packets.
const partFile = ".part"

// part is a file that has not appeared yet.
type part struct {
	f       *os.File
	name    string // in the directory
	number  uint64 // of the file that it becomes
	size    int64  // bytes of complete packets
	packets int    // in those bytes
	torn    bool   // the file may be longer: a write was interrupted

	synced int64     // bytes on disk
	since  time.Time // of the last sync, or the beginning
	flush  *flush    // in progress
	asked  int64     // size when flush began
}

// partName is the private name of a file that becomes number: its first size bytes are complete
// packets, of which synced bytes are on disk.
func partName(number uint64, size, synced int64) string {
	return fmt.Sprintf("%s.%d.%d.%d", partFile, number, size, synced)
}

// parsePart parses a partName.
func parsePart(name string) (number uint64, size, synced int64, ok bool) {
	text, ok := strings.CutPrefix(name, partFile+".")
	fields := strings.Split(text, ".")
	if len(fields) == 1 { // of an earlier version: only the size
		fields = []string{"0", text, "0"}
	}
	if !ok || len(fields) != 3 {
		return 0, 0, 0, false
	}
	var v [3]int64
	for i, field := range fields {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil || n < 0 {
			return 0, 0, 0, false
		}
		v[i] = n
	}
	return uint64(v[0]), v[1], v[2], v[0] <= maxNumber && v[2] <= v[1]
}

// write appends data, or nothing at all.
func (p *part) write(data []byte) error {
	if _, err := p.f.WriteAt(data, p.size); err != nil {
		p.torn = true // WriteAt does not report how much it wrote
		return errors.Join(err, p.mend())
	}
	p.size += int64(len(data))
	p.packets++
	return nil
}

// undo removes the last packet, which began at byte before.
func (p *part) undo(before int64) error {
	p.size, p.torn = before, true
	p.packets--
	return p.mend()
}

// mend removes what was written of an incomplete packet.
func (p *part) mend() error {
	if !p.torn {
		return nil
	}
	if err := p.f.Truncate(p.size); err != nil {
		return err
	}
	p.torn = false
	return nil
}

// count renames the part so that its name has its sizes.
func (d *shelf) count(p *part) error {
	synced := p.synced
	if d.s.disk == nil {
		synced = p.size // a power failure may prove that wrong: see WithoutSync
	}
	name := partName(p.number, p.size, synced)
	if name == p.name {
		return nil
	}
	if err := d.dir.Rename(p.name, name); err != nil {
		return err
	}
	p.name, d.dirty = name, true
	return nil
}

// restore copies a part whose file was removed to a new file.
func (d *shelf) restore(p *part) error {
	f, err := safefile.Create(d.dir, partFile)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, io.NewSectionReader(p.f, 0, p.size)); err != nil {
		return errors.Join(err, f.Close(), safefile.Remove(d.dir, partFile))
	}
	_ = p.f.Close() // that file has no name anymore
	p.f, p.name, p.torn, p.synced, p.flush = f, partFile, false, 0, nil
	return d.count(p)
}

// sync begins to sync a part.
func (d *shelf) sync(p *part) {
	if d.s.disk == nil || p.flush != nil || p.synced == p.size {
		return
	}
	p.asked = p.size
	p.flush = d.s.disk.start(&flush{files: []*os.File{p.f}, size: p.size - p.synced})
}

// collect takes the result of a sync. It returns false while it is in progress, and the error of a
// part whose data is lost.
func (d *shelf) collect(p *part, wait bool) (over bool, err error) {
	if p.flush == nil {
		return true, nil
	}
	if wait {
		p.flush.wait()
	}
	if !p.flush.over() {
		return false, nil
	}
	err = p.flush.err
	p.flush, p.synced, p.since = nil, p.asked, time.Now()
	return true, err
}

// drop gives up a part whose data did not reach the disk. The kernel has discarded the data, so
// another attempt would seem to succeed. The number of the file stays unused.
func (d *shelf) drop(p *part, err error) {
	loss := &d.s.lost[d.device]
	loss.Packets += uint64(p.packets)
	loss.Err = storeError(err)
	_ = p.f.Close()
	_ = safefile.Remove(d.dir, p.name)
	d.dirty = true
}

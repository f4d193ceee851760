package part

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/safefile"
)

// A journal consists of a header and records of fixed size. Each record has a number and a
// checksum, which depends on that of the header. What follows the first invalid record does not
// count. All integers are big-endian.
const (
	journalMagic = "gorxejnl"
	headerSize   = 48 // magic, size, mtime (s, ns), version, inode of the part, CRC32C
	recordSize   = 32 // type, number, two values, CRC32C of the range, CRC32C of the record
	maxJournal   = 1 << 30
)

// Types of records.
const (
	recordBoot  = 1 // the values are the kernel's boot ID; valid for the ranges that follow
	recordRange = 2 // offset and length of a range that was written
	recordSync  = 3 // the first so many records are on disk
)

var errJournal = errors.New("invalid journal")

// bootID returns the kernel's boot ID, zero if it is unknown.
var bootID = sync.OnceValue(func() (id [16]byte) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err == nil {
		copy(id[:], raw)
	}
	return id
})

// Prepare reads what this package needs of files outside of a target directory. A process that
// confines itself calls it before.
func Prepare() {
	bootID()
	descriptors()
}

// journal is the journal of a Part. If it cannot be written, the transfer continues without.
type journal struct {
	mu     sync.Mutex
	f      *os.File
	n      uint32 // records
	seed   uint32 // CRC of the header
	broken error
	inDir  bool // the names of journal and part are on disk
}

func (p *Part) header(id Identity) ([]byte, error) {
	info, err := p.f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errJournal
	}
	b := []byte(journalMagic)
	b = binary.BigEndian.AppendUint64(b, uint64(id.Size))
	b = binary.BigEndian.AppendUint64(b, uint64(id.Mtime.Unix()))
	b = binary.BigEndian.AppendUint32(b, uint32(id.Mtime.Nanosecond()))
	b = binary.BigEndian.AppendUint64(b, id.Version)
	b = binary.BigEndian.AppendUint64(b, st.Ino)
	return binary.BigEndian.AppendUint32(b, extent.Sum(b)), nil
}

// newJournal writes a journal with the given ranges, whose data is on disk, and gives it its name.
func (p *Part) newJournal(id Identity, have []extent.Extent) (*journal, error) {
	header, err := p.header(id)
	if err != nil {
		return nil, err
	}
	temp := temporary(p.name, newSuffix)
	f, err := safefile.Create(p.dir, temp)
	if err != nil {
		return nil, err
	}
	j := &journal{f: f, seed: binary.BigEndian.Uint32(header[headerSize-4:])}
	boot := bootID()
	j.append(header)
	j.record(recordBoot, binary.BigEndian.Uint64(boot[:]), binary.BigEndian.Uint64(boot[8:]), 0)
	for _, e := range have {
		j.record(recordRange, uint64(e.Offset), uint64(e.Length), e.CRC)
	}
	if len(have) > 0 {
		j.record(recordSync, uint64(j.n), 0, 0)
		// The old journal is replaced, so the new one must be on disk before.
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			j.broken = err
		}
	}
	if j.broken != nil {
		err = fmt.Errorf("%w: %w", errJournal, j.broken)
	} else {
		err = p.dir.Rename(temp, temporary(p.name, journalSuffix))
	}
	if err != nil {
		_ = p.dir.Remove(temp)
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

func (j *journal) add(e extent.Extent) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.record(recordRange, uint64(e.Offset), uint64(e.Length), e.CRC)
}

func (j *journal) length() uint32 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.n
}

// synced notes that the ranges of the first n records are on disk.
func (j *journal) synced(dir *os.Root, n uint32) {
	j.mu.Lock()
	j.record(recordSync, uint64(n), 0, 0)
	named := j.inDir
	j.inDir = true
	j.mu.Unlock()
	// Errors mean that a resumed transfer has to send more.
	_ = unix.Fdatasync(int(j.f.Fd()))
	if named {
		return
	}
	if d, err := dir.Open("."); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}

// record appends a record. The caller holds mu.
func (j *journal) record(kind uint32, a, b uint64, crc uint32) {
	var r [recordSize]byte
	binary.BigEndian.PutUint32(r[0:], kind)
	binary.BigEndian.PutUint32(r[4:], j.n)
	binary.BigEndian.PutUint64(r[8:], a)
	binary.BigEndian.PutUint64(r[16:], b)
	binary.BigEndian.PutUint32(r[24:], crc)
	binary.BigEndian.PutUint32(r[28:], extent.Append(j.seed, r[:28]))
	j.append(r[:])
	j.n++
}

func (j *journal) append(b []byte) {
	if j.broken != nil {
		return
	}
	if _, err := j.f.Write(b); err != nil {
		j.broken = err // what follows an incomplete record would not be found
	}
}

func (j *journal) close() { _ = j.f.Close() }

// readJournal returns the ranges of a journal whose data the part has.
func (p *Part) readJournal(id Identity) (*extent.Set, error) {
	f, err := safefile.Open(p.dir, temporary(p.name, journalSuffix), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxJournal))
	if err != nil {
		return nil, err
	}
	want, err := p.header(id)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(data, want) {
		return nil, fmt.Errorf("%w: it belongs to another version of the file", errJournal)
	}
	info, err := p.f.Stat()
	if err != nil {
		return nil, err
	}
	return parseJournal(data[headerSize:], binary.BigEndian.Uint32(want[headerSize-4:]),
		min(id.Size, info.Size()))
}

// parseJournal returns the valid ranges among records. They end within size.
func parseJournal(data []byte, seed uint32, size int64) (*extent.Set, error) {
	type written struct {
		extent.Extent
		number  uint64
		current bool // written since the kernel was started
	}
	var (
		list    []written
		current bool
		onDisk  uint64
	)
	boot := bootID()
	for n := uint64(0); len(data) >= recordSize; n, data = n+1, data[recordSize:] {
		r := data[:recordSize]
		if binary.BigEndian.Uint32(r[28:]) != extent.Append(seed, r[:28]) ||
			uint64(binary.BigEndian.Uint32(r[4:])) != n {
			break
		}
		a, b := binary.BigEndian.Uint64(r[8:]), binary.BigEndian.Uint64(r[16:])
		switch binary.BigEndian.Uint32(r) {
		case recordBoot:
			current = bytes.Equal(r[8:24], boot[:]) && boot != [16]byte{}
		case recordRange:
			if a > uint64(size) || b > uint64(size)-a {
				return nil, fmt.Errorf("%w: a range of %d bytes at %d", errJournal, b, a)
			}
			e := extent.Extent{Offset: int64(a), Length: int64(b),
				CRC: binary.BigEndian.Uint32(r[24:])}
			list = append(list, written{e, n, current})
		case recordSync:
			onDisk = min(a, n)
		}
	}
	have := new(extent.Set)
	for _, w := range list {
		if w.number >= onDisk && !w.current {
			continue
		}
		if err := have.Add(w.Extent); err != nil {
			return nil, fmt.Errorf("%w: %w", errJournal, err)
		}
	}
	return have, nil
}

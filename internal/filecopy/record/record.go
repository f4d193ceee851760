package record

import (
	"encoding/binary"
	"math"
	"strings"
	"time"
)

// Type is the type of a record.
type Type uint8

// The types of records.
const (
	TypeEntry Type = 1 + iota // Entry
	TypeData                  // Data
	TypeEnd                   // End
	TypeFail                  // Fail
	TypeLeave                 // Leave
	TypeTree                  // Tree
)

// Sizes of records in bytes.
const (
	headerSize = 4  // type and length
	entrySize  = 52 // of an Entry without its name and link target
	dataSize   = 12 // of Data without the contents
	endSize    = 28
	leaveSize  = 9
	treeSize   = 16

	// DataOverhead is the size of a Data record without the contents of the file.
	DataOverhead = headerSize + dataSize
	// MaxName is the longest name of an entry.
	MaxName = 255
	// MaxDepth is the depth of the deepest directory. The deepest one with a path that the kernel
	// accepts is as deep.
	MaxDepth = 2048
	// MaxLink is the longest target of a symbolic link.
	MaxLink = 4095
	// MaxText is the longest text of an error.
	MaxText = 1000
	// MaxSize is the size of the largest record that is not Data.
	MaxSize = headerSize + entrySize + MaxName + MaxLink
	// maxBody is the largest length that the header of a record can tell.
	maxBody = 1<<24 - 1
	// MaxData is the size of the largest file in a Data record.
	MaxData = maxBody - dataSize
)

// Kind is the kind of an entry.
type Kind uint8

// The kinds of entries. Sinks refuse others.
const (
	File    Kind = 1 + iota
	Dir          // its contents follow
	Symlink      // symbolic link
	Stream       // file of unknown size, for example standard input
)

// String returns a word for messages.
func (k Kind) String() string {
	switch k {
	case File:
		return "file"
	case Dir:
		return "directory"
	case Symlink:
		return "symbolic link"
	case Stream:
		return "stream"
	}
	return "special file"
}

// Entry describes a file, directory or link that the source has. Entries have numbers, which grow.
type Entry struct {
	Number uint64
	// Parent is the number of the directory, 0 for the target directory. The directory's Entry
	// comes before, and its Leave after.
	Parent uint64
	Kind   Kind
	// Perm holds the permission bits.
	Perm  uint16
	Mtime time.Time
	// Size is the number of bytes of a File.
	Size int64
	// Sparse means that the File has holes, so it may need less space than Size.
	Sparse bool
	// Version identifies the contents of a File at the source. It changes with each change of the
	// file, so a transfer can be resumed only if it is equal.
	Version uint64
	// Name is one element of a path. It contains no slash.
	Name string
	// Link is the target of a Symlink.
	Link string
}

// AppendEntry appends a record.
func AppendEntry(b []byte, e *Entry) []byte {
	b = appendHeader(b, TypeEntry, entrySize+len(e.Name)+len(e.Link))
	b = binary.BigEndian.AppendUint64(b, e.Number)
	b = binary.BigEndian.AppendUint64(b, e.Parent)
	b = append(b, byte(e.Kind), flag(e.Sparse))
	b = appendAttributes(b, &Attributes{e.Perm, e.Mtime})
	b = binary.BigEndian.AppendUint64(b, uint64(e.Size))
	b = binary.BigEndian.AppendUint64(b, e.Version)
	b = binary.BigEndian.AppendUint16(b, uint16(len(e.Name)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(e.Link)))
	return append(append(b, e.Name...), e.Link...)
}

// EntryLen returns the size of an entry's record.
func EntryLen(e *Entry) int { return headerSize + entrySize + len(e.Name) + len(e.Link) }

func parseEntry(body []byte) (*Entry, error) {
	f := fields{data: body}
	e := &Entry{Number: f.u64(), Parent: f.u64(), Kind: Kind(f.u8())}
	e.Sparse = f.u8()&1 != 0
	a := f.attributes()
	e.Perm, e.Mtime = a.Perm, a.Mtime
	size := f.u64()
	e.Version = f.u64()
	name, link := f.u16(), f.u16()
	e.Name, e.Link = string(f.take(int(name))), string(f.take(int(link)))
	if err := f.end("an entry"); err != nil {
		return nil, err
	}
	if size > math.MaxInt64 {
		return nil, formatError("a file of %d bytes", size)
	}
	e.Size = int64(size)
	return e, nil
}

// CheckName returns an error unless name can be the name of a directory's entry. Names contain any
// bytes but slashes and zeros.
func CheckName(name string) error {
	switch {
	case name == "":
		return formatError("a name is empty")
	case name == "." || name == "..":
		return formatError("the name %q is not allowed", name)
	case strings.ContainsAny(name, "/\x00"):
		return formatError("the name %q contains a slash or a zero byte", cut(name, MaxName))
	case len(name) > MaxName:
		return formatError("a name has %d bytes, at most %d are possible", len(name), MaxName)
	}
	return nil
}

// Data is the complete contents of a small file that the sink wants.
type Data struct {
	Number   uint64
	CRC      uint32 // CRC32C of Contents
	Contents []byte // view into the block
}

// DataHeader writes the header of a Data record for size bytes of contents into b[:DataOverhead].
func DataHeader(b []byte, number uint64, crc uint32, size int) {
	binary.BigEndian.PutUint32(b, uint32(TypeData)<<24|uint32(dataSize+size))
	binary.BigEndian.PutUint64(b[4:], number)
	binary.BigEndian.PutUint32(b[12:], crc)
}

// SkipHeader writes the header of a record of size bytes in total, at least DataOverhead, that the
// sink ignores.
func SkipHeader(b []byte, size int) {
	binary.BigEndian.PutUint32(b, uint32(size-headerSize))
}

// End ends the contents of a file that was sent in blocks of its own.
type End struct {
	Number uint64
	Size   int64  // of the file
	Data   int64  // bytes that were sent or that the sink had: Size without holes
	CRC    uint32 // CRC32C of the whole file
}

// AppendEnd appends a record.
func AppendEnd(b []byte, e *End) []byte {
	b = appendHeader(b, TypeEnd, endSize)
	b = binary.BigEndian.AppendUint64(b, e.Number)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Size))
	b = binary.BigEndian.AppendUint64(b, uint64(e.Data))
	return binary.BigEndian.AppendUint32(b, e.CRC)
}

// Fail means that the source cannot send a file.
type Fail struct {
	Number uint64 // 0 if it was not announced; then the text begins with its path
	// Changed means that the file has changed. What the sink has of it is of no use.
	Changed bool
	Text    string
}

// AppendFail appends a record. It shortens the text to MaxText.
func AppendFail(b []byte, f *Fail) []byte {
	text := cut(f.Text, MaxText)
	b = appendHeader(b, TypeFail, 9+len(text))
	b = binary.BigEndian.AppendUint64(b, f.Number)
	b = append(b, flag(f.Changed))
	return append(b, text...)
}

// Leave means that all entries of a directory were sent.
type Leave struct {
	Number uint64 // of the directory
	// Complete means that the source could read the whole directory, so that the sink may delete
	// what was not among its entries.
	Complete bool
}

// AppendLeave appends a record.
func AppendLeave(b []byte, l *Leave) []byte {
	b = appendHeader(b, TypeLeave, leaveSize)
	b = binary.BigEndian.AppendUint64(b, l.Number)
	return append(b, flag(l.Complete))
}

// Tree means that all entries were sent.
type Tree struct {
	Entries uint64
	Bytes   uint64 // of all files
}

// AppendTree appends a record.
func AppendTree(b []byte, t *Tree) []byte {
	b = appendHeader(b, TypeTree, treeSize)
	b = binary.BigEndian.AppendUint64(b, t.Entries)
	return binary.BigEndian.AppendUint64(b, t.Bytes)
}

func appendHeader(b []byte, t Type, size int) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(t)<<24|uint32(size))
}

func flag(on bool) byte {
	if on {
		return 1
	}
	return 0
}

// Next decodes the first record of a block. The record is a *Entry, *Data, *End, *Fail, *Leave or
// *Tree, or nil for one that is to be ignored. Contents of Data are a view into the block.
func Next(block []byte) (rec any, rest []byte, err error) {
	f := fields{data: block}
	h := f.u32()
	body := f.take(int(h & maxBody))
	if f.short {
		return nil, nil, formatError("a record is not complete")
	}
	rec, err = parse(Type(h>>24), body)
	return rec, f.data, err
}

func parse(t Type, body []byte) (any, error) {
	f := fields{data: body}
	switch t {
	case 0:
		return nil, nil
	case TypeEntry:
		e, err := parseEntry(body)
		if err != nil {
			return nil, err
		}
		return e, nil
	case TypeData:
		d := &Data{Number: f.u64(), CRC: f.u32()}
		if f.short {
			return nil, formatError("the contents of a file are not complete")
		}
		d.Contents = f.data
		return d, nil
	case TypeEnd:
		number, size, data, crc := f.u64(), f.u64(), f.u64(), f.u32()
		if size > math.MaxInt64 || data > size {
			return nil, formatError("a file of %d bytes with %d bytes of data", size, data)
		}
		return &End{number, int64(size), int64(data), crc}, f.end("the end of a file")
	case TypeFail:
		r := &Fail{Number: f.u64(), Changed: f.u8() != 0}
		if f.short || len(f.data) > MaxText {
			return nil, formatError("an error has the wrong length")
		}
		r.Text = string(f.data)
		return r, nil
	case TypeLeave:
		return &Leave{f.u64(), f.u8() != 0}, f.end("the end of a directory")
	case TypeTree:
		return &Tree{f.u64(), f.u64()}, f.end("the end of the tree")
	}
	return nil, formatError("a record of type %d", t)
}

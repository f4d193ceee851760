package part

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/gorxe/gorxe/internal/safefile"
)

// The names of temporary files consist of the prefix, the ID of the file's name in hexadecimal, and
// a suffix.
const (
	prefix        = ".gorxe-"
	partSuffix    = ".part"
	journalSuffix = ".journal"
	newSuffix     = ".new" // a journal that is being written
	idDigits      = 16
)

// Pattern describes the names of incomplete files in messages.
const Pattern = prefix + "*" + partSuffix

// ID identifies a name. Its temporary files have the ID in their names.
func ID(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:])
}

// naming has locks for what has a temporary name only while it replaces something: sessions of this
// process often store the same names at the same time.
var naming [64]sync.Mutex

// lockID locks the temporary names with an ID, in all directories, and returns the function that
// unlocks them.
func lockID(id uint64) (unlock func()) {
	mu := &naming[id%uint64(len(naming))]
	mu.Lock()
	return mu.Unlock
}

func temporary(name, suffix string) string {
	var id [8]byte
	binary.BigEndian.PutUint64(id[:], ID(name))
	return prefix + hex.EncodeToString(id[:]) + suffix
}

// Temporary reports whether a name is that of a temporary file of this package, and the ID of the
// name that the file belongs to.
func Temporary(name string) (id uint64, ok bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok || len(rest) < idDigits {
		return 0, false
	}
	var raw [8]byte
	if _, err := hex.Decode(raw[:], []byte(rest[:idDigits])); err != nil {
		return 0, false
	}
	switch rest[idDigits:] {
	case partSuffix, journalSuffix, newSuffix:
		return binary.BigEndian.Uint64(raw[:]), true
	}
	return 0, false
}

// RemoveLeft removes a temporary file, and the journal beside it, for which no session has a use
// any more. It fails with ErrBusy if one writes the file.
func RemoveLeft(dir *os.Root, name string) error {
	return left(dir, name, func(p *Part) error {
		if err := p.removeOld(); err != nil || name == p.temp {
			return err
		}
		// A part that is there now is new, and so may be its journal.
		if _, err := dir.Lstat(p.temp); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(ErrBusy, err)
		}
		return safefile.Remove(dir, name)
	})
}

// Free returns ErrBusy if RemoveLeft would do so. It removes nothing.
func Free(dir *os.Root, name string) error {
	return left(dir, name, func(p *Part) error {
		f, err := p.openOld()
		switch {
		case err == nil:
			return f.Close()
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, safefile.ErrUnsafe):
			return nil
		}
		return err
	})
}

// left calls f for the part to which a temporary file belongs.
func left(dir *os.Root, name string, f func(*Part) error) error {
	id, ok := Temporary(name)
	if !ok {
		return fs.ErrInvalid
	}
	defer lockID(id)()
	return f(&Part{dir: dir, temp: name[:len(prefix)+idDigits] + partSuffix})
}

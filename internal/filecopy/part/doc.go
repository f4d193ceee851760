// Package part stores files that are being received. A file gets its name when it is complete;
// until then it has a temporary name in the same directory, derived from its name, so that a later
// run finds it again.
//
// CreateUnnamed is for small files. They have no temporary name, if the file system and the kernel
// support that.
//
// A large file has a journal beside it: the ranges that were written, with their checksums. A range
// is in the journal after its checksum was verified and the write has returned. Checkpoint writes
// the data to disk (fdatasync) and then says so in the journal, which it syncs as well. Therefore,
// after the process was killed, all ranges of the journal are valid, because the kernel still has
// their data. After the host has crashed, those before the last checkpoint are valid. The two cases
// differ in the boot ID of the kernel, which is in the journal, too. A journal is valid only for
// the same version of the source's file and for the same temporary file, never by size alone.
//
// A lock on the temporary file keeps two sessions from writing the same file.
//
// Names are single path elements below an os.Root.
//
// Reading order:
//   - names.go: names of temporary files
//   - part.go: Part: creating, writing, committing
//   - unnamed.go: small files, which have no name before they are complete
//   - time_unsafe.go: SetTime
//   - resume.go: opening what an earlier run has left
//   - journal.go: the journal and its format
//   - sync.go: syncing many files together
//   - symlink.go: symbolic links
package part

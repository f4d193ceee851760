// Package safefile opens files in directories that other users may write. A user who plants a
// symbolic link, a hard link, a FIFO, a device or a directory under the name of a file can neither
// redirect an access to another file nor block it.
//
// Names are single path elements below an os.Root. The owner of a directory can still remove or
// replace its files. That harms only the directory's own data.
//
// Reading order:
//
//   - safefile.go: opening directories, creating files, opening existing files.
package safefile

// Package dirs keeps directories of a tree open while they are in use, up to a limit, and opens
// them again when needed. A directory is opened relative to its parent and never through a symbolic
// link, so no path leaves the top directory, and paths may be longer than the kernel's limit for
// path names (4095 bytes).
//
// Reading order:
//   - dirs.go: Cache and Dir
package dirs

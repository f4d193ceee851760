// Package archtest tests rules that hold for the whole source tree: import directions, what the
// pure packages must not use, where unsafe code is allowed, and the length of files. It has no code
// of its own.
package archtest

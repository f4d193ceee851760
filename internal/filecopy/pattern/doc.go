// Package pattern decides by patterns, as those of rsync, which names of a tree are copied.
//
// The first rule with a pattern that matches a path decides; without a match the path is included.
// A pattern without a slash matches the last element of a path. One with a slash matches the end of
// the path, or the whole path if it begins with a slash. A pattern that ends with a slash matches
// directories only. In a pattern, * stands for any text without a slash, ** for any text, ? for one
// character other than a slash, and [abc] or [[:alpha:]] for one of several characters. **/ at the
// beginning also stands for no directory. dir/*** matches the directory dir and what is in it. The
// contents of an excluded directory are not looked at.
//
// Reading order:
//   - pattern.go: List and its rules
package pattern

// Package archtest tests rules that hold for the whole source tree: which packages a package may
// import, what the pure packages must not use, where unsafe code is allowed, the length of files,
// the width of comments and Markdown, the reading orders in doc.go files, that Go code in Markdown
// is compiled, and that links and identifiers in Markdown exist. It contains only tests.
package archtest

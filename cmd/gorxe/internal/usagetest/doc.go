// Package usagetest has a helper for tests of the flags and arguments of commands.
//
// Reading order:
//   - usage.go: Fails
package usagetest

// Package inside gives package internal/uverbs the engine objects behind those of package roce,
// without making them part of roce's API. Package roce sets the functions when it is initialized.
//
// Reading order:
//
//   - inside.go: the functions
package inside

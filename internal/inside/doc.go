// Package inside gives packages internal/uverbs and internal/ucma the engine objects behind those
// of package roce, and its connection manager, and package internal/status a report about a device,
// without making them part of roce's API. Package roce sets the functions when it is initialized.
//
// Reading order:
//
//   - inside.go: the functions
package inside

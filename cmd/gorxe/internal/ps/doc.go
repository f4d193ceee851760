// Package ps is the commands "gorxe ps" and "gorxe top", which show the programs of node services
// and their queue pairs.
//
// Reading order:
//   - services.go: finding the services
//   - ps.go: the command ps
//   - table.go: what both commands print
//   - top.go: the command top
//   - screen.go: the terminal of top
package ps

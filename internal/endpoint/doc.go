// Package endpoint bundles the verbs objects that one side of a connection needs: a protection
// domain, completion queues, a memory region and queue pairs. New creates them in the right order
// and Close destroys them in the reverse order.
//
// Reading order:
//
//   - endpoint.go: Config, Endpoint, New and Close.
//   - connect.go: connecting two endpoints of the same process.
//   - status.go: errors made from failed completions.
package endpoint

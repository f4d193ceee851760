// Package status shows what a device and the programs of its node service do: a [Collector] makes
// snapshots, and [Handler] serves them over HTTP as a page, as JSON and as metrics of Prometheus.
//
// The package only reads. Work is bounded: all requests within half a second share a snapshot, and
// the numbers of programs and queue pairs in it are limited. Reports of other programs are not
// trusted: unknown fields, queue pairs of another slot and text that is not printable are removed.
//
// Reading order:
//   - snapshot.go: what a snapshot contains
//   - report.go: decoding the reports of programs
//   - collector.go: making snapshots, rates
//   - service.go: programs that have joined a node service; reading its status
//   - metrics.go: metrics of Prometheus
//   - server.go: HTTP, and who may read
//   - connections.go: closes idle connections when there are too many
//   - listen.go: the address of --metrics
package status

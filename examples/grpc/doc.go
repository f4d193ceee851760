// Package grpc shows gRPC over package rsocket, in an example and a test. It is a module of its
// own, so that programs that use gorxe do not require gRPC. `make test` runs it.
//
// Reading order: grpc_test.go.
package grpc

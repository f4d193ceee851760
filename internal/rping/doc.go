// Package rping speaks the protocol of rping, the RDMA world's ping: over a connection made by
// rdma_cm, the client names its source buffer in a SEND, the server READs it and answers by a SEND, the
// client names its sink, the server WRITEs the text there and answers again; the client compares.
//
// wire.go has the messages, end.go what both roles share, server.go and client.go the roles.
package rping

// Package decode has the fuzz targets for everything that reads bytes from unknown hosts before a
// queue pair sees them: frames, BTHs and the gopacket layers. Everything is in the tests. The seeds
// are a frame of every kind from the rxe captures and frames that are known to have crashed RoCE
// stacks.
//
//	go test ./fuzz/decode -run '^$' -fuzz FuzzFrameDecode -fuzztime 30s
package decode

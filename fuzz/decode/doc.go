// Package decode holds the fuzz targets for everything that reads bytes of a
// stranger before a queue pair sees them: frames, BTHs, and the gopacket layers.
// All is in the tests; the seeds are a frame of every kind from the rxe captures
// and the frames that are known to have brought RoCE stacks down.
//
//	go test ./fuzz/decode -run '^$' -fuzz FuzzFrameDecode -fuzztime 30s
package decode

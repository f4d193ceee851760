package main

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"hash/fnv"
)

// A slot holds one key and its value:
//
//	byte 0         length of the key; 0: the slot is free
//	byte 1         length of the value
//	bytes 2-123    the key, then the value
//	bytes 124-127  CRC-32C of bytes 0 to 123
//
// A slot fits in one packet. So a WRITE of a slot is executed completely or not at all, even if the
// sender dies. A READ may still overlap with a change: its CRC is wrong then.
const (
	slotLen  = 128
	slots    = 1024
	tableLen = slots * slotLen
	maxPair  = 122 // bytes of a key and its value
	sumAt    = slotLen - 4
)

var (
	errFull     = errors.New("kv: the table is full")
	errTooLong  = errors.New("kv: a key and its value are longer than 122 bytes, or the key is empty")
	errNotFound = errors.New("kv: no such key")
	errDeposed  = errors.New("kv: another node is the primary now")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeSlot returns the slot of a key and its value.
func encodeSlot(key, value string) ([]byte, error) {
	if key == "" || len(key)+len(value) > maxPair {
		return nil, errTooLong
	}
	s := make([]byte, slotLen)
	s[0], s[1] = byte(len(key)), byte(len(value))
	copy(s[2+copy(s[2:], key):], value)
	binary.BigEndian.PutUint32(s[sumAt:], crc32.Checksum(s[:sumAt], castagnoli))
	return s, nil
}

// decodeSlot returns the contents of a slot. ok is false if the slot was being changed.
func decodeSlot(s []byte) (key, value string, ok bool) {
	k, v := int(s[0]), int(s[1])
	sum := binary.BigEndian.Uint32(s[sumAt:])
	if k == 0 && v == 0 && sum == 0 {
		return "", "", true // free
	}
	if k+v > maxPair || sum != crc32.Checksum(s[:sumAt], castagnoli) {
		return "", "", false
	}
	return string(s[2 : 2+k]), string(s[2+k : 2+k+v]), true
}

// home returns the slot in which the search for a key begins. If another key is there, the next
// slot follows.
func home(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % slots)
}

// find returns the offset of the slot of a key, or of the free slot in which the search for it
// ends. read returns the slot at an offset: the server reads its memory, a client does a READ.
func find(key string, read func(off int) ([]byte, error)) (off int, value string, err error) {
	for i := range slots {
		off = (home(key) + i) % slots * slotLen
		s, err := read(off)
		if err != nil {
			return 0, "", err
		}
		switch k, v, ok := decodeSlot(s); {
		case !ok:
			return 0, "", errTorn
		case k == key:
			return off, v, nil
		case k == "":
			return off, "", errNotFound
		}
	}
	return 0, "", errFull
}

// errTorn: the slot was being changed while it was read; read again.
var errTorn = errors.New("kv: the slot was being changed")

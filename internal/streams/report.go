package streams

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
)

// DeviceReport counts the stream of one device.
type DeviceReport struct {
	Device     int    `json:"device"`
	Packets    uint64 `json:"packets"`
	Bytes      uint64 `json:"bytes"`
	Gaps       uint64 `json:"gaps"`
	Duplicates uint64 `json:"duplicates"`
	SHA256     string `json:"sha256"`             // of the concatenated data of all packets
	Unstored   uint64 `json:"unstored,omitempty"` // packets that arrived and could not be stored
}

// Report is the result of sending or receiving.
type Report struct {
	Peer      string         `json:"peer"`
	Datapath  string         `json:"datapath"`
	Blocks    int            `json:"blocks"`
	BlockSize int            `json:"block_size"`
	Seconds   float64        `json:"seconds"` // recv: from the first packet to the last
	Devices   []DeviceReport `json:"devices"`

	BadStatus  uint64 `json:"bad_status"`           // invalid status values written by the peer
	BadHeader  uint64 `json:"bad_header,omitempty"` // recv: blocks with invalid headers
	Unknown    uint64 `json:"unknown_device"`       // recv: packets of other devices
	Overwrites uint64 `json:"overwrites,omitempty"` // recv: blocks overwritten while in use
	Syncs      uint64 `json:"syncs,omitempty"`      // send: READs of the status array
}

// tally counts and hashes the stream of one device.
type tally struct {
	DeviceReport
	hash hash.Hash
}

// tallies are the tallies of all devices, nil for devices without packets.
type tallies [256]*tally

func (t *tallies) of(device uint8) *tally {
	if t[device] == nil {
		t[device] = &tally{DeviceReport: DeviceReport{Device: int(device)}, hash: sha256.New()}
	}
	return t[device]
}

func (t *tally) add(data []byte) {
	t.Packets++
	t.Bytes += uint64(len(data))
	_, _ = t.hash.Write(data) // never fails
}

func (t *tallies) reports() []DeviceReport {
	list := []DeviceReport{} // in JSON an empty array, not null
	for _, d := range t {
		if d != nil {
			d.SHA256 = hex.EncodeToString(d.hash.Sum(nil))
			list = append(list, d.DeviceReport)
		}
	}
	return list
}

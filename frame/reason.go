package frame

import "fmt"

// Reason says why a frame was dropped; counters are indexed by it.
type Reason uint8

// The reasons, in the order in which Decode checks.
const (
	ReasonOK          Reason = iota
	ReasonShort              // ends inside a header, or sooner than its IP length says
	ReasonNotRoCE            // not IP, not UDP, or not to port 4791
	ReasonVLAN               // more than one VLAN tag
	ReasonIPOptions          // IPv4 options or IPv6 extension headers
	ReasonFragment           // a piece of an IP packet
	ReasonIPChecksum         // IPv4 header checksum wrong
	ReasonAddress            // an IPv4-mapped address in an IPv6 header
	ReasonUDPLength          // UDP and IP disagree on the length
	ReasonUDPChecksum        // UDP checksum filled in, and wrong
	ReasonTruncated          // no room for BTH and ICRC, or for what the opcode demands
	ReasonICRC               // the invariant CRC is wrong
	ReasonVersion            // transport version not 0
	ReasonOpcode             // opcode unknown
	ReasonPad                // pad count beyond the payload
	NumReasons
)

var reasonNames = [NumReasons]string{
	"ok", "short frame", "not RoCE", "nested VLAN tags", "IP options", "IP fragment", "bad IP checksum",
	"bad address", "bad UDP length", "bad UDP checksum", "truncated packet", "bad ICRC",
	"bad transport version", "unknown opcode", "bad pad count",
}

// String returns the reason in words, such as "bad ICRC".
func (r Reason) String() string {
	if r < NumReasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

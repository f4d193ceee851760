package frame

import "fmt"

// Reason says why a frame was dropped. It serves as an index of counters.
type Reason uint8

// The reasons, in the order in which Decode checks them.
const (
	ReasonOK          Reason = iota
	ReasonShort              // ends inside a header or before its IP length
	ReasonNotRoCE            // not IP, not UDP, or not to port 4791
	ReasonVLAN               // more than one VLAN tag
	ReasonIPOptions          // IPv4 options or IPv6 extension headers
	ReasonFragment           // a fragment of an IP packet
	ReasonIPChecksum         // wrong IPv4 header checksum
	ReasonAddress            // an IPv4-mapped address in an IPv6 header
	ReasonUDPLength          // the UDP length and the IP length disagree
	ReasonUDPChecksum        // a UDP checksum is present but wrong
	ReasonTruncated          // too short for BTH and ICRC, or for what the opcode requires
	ReasonICRC               // wrong invariant CRC
	ReasonVersion            // the transport header version is not 0
	ReasonOpcode             // unknown opcode
	ReasonPad                // pad count larger than the payload
	NumReasons
)

var reasonNames = [NumReasons]string{
	"ok", "short frame", "not RoCE", "nested VLAN tags", "IP options", "IP fragment",
	"bad IP checksum", "bad address", "bad UDP length", "bad UDP checksum", "truncated packet",
	"bad ICRC", "bad transport version", "unknown opcode", "bad pad count",
}

// String returns a description such as "bad ICRC".
func (r Reason) String() string {
	if r < NumReasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

package cm

import "fmt"

// Reason says why a connection was refused or ended (IBA 12.6.7.2).
type Reason uint16

// The reasons.
const (
	ReasonNone                  Reason = 0 // no REJ
	ReasonNoQP                  Reason = 1
	ReasonNoEEC                 Reason = 2
	ReasonNoResources           Reason = 3
	ReasonTimeout               Reason = 4 // the sender stopped waiting; Info is its GUID
	ReasonUnsupported           Reason = 5
	ReasonInvalidCommID         Reason = 6
	ReasonInvalidCommInstance   Reason = 7
	ReasonInvalidServiceID      Reason = 8 // no listener
	ReasonInvalidTransport      Reason = 9
	ReasonStaleConnection       Reason = 10 // the sender's QP is in use by a connection
	ReasonRDCNotExist           Reason = 11
	ReasonInvalidGID            Reason = 12
	ReasonInvalidLID            Reason = 13
	ReasonInvalidSL             Reason = 14
	ReasonInvalidTrafficClass   Reason = 15
	ReasonInvalidHopLimit       Reason = 16
	ReasonInvalidPacketRate     Reason = 17
	ReasonInvalidAltGID         Reason = 18
	ReasonInvalidAltLID         Reason = 19
	ReasonInvalidAltSL          Reason = 20
	ReasonInvalidAltTrafficCl   Reason = 21
	ReasonInvalidAltHopLimit    Reason = 22
	ReasonInvalidAltPacketRate  Reason = 23
	ReasonCMRedirect            Reason = 24
	ReasonPortRedirect          Reason = 25
	ReasonInvalidMTU            Reason = 26 // Info[0] is the largest path MTU, encoded
	ReasonInsufficientResources Reason = 27 // responder resources
	ReasonConsumer              Reason = 28 // the application refused; see the private data
	ReasonInvalidRNRRetry       Reason = 29
	ReasonDuplicateCommID       Reason = 30
	ReasonInvalidClassVersion   Reason = 31
	ReasonInvalidFlowLabel      Reason = 32
	ReasonInvalidAltFlowLabel   Reason = 33
	ReasonVendorOption          Reason = 35
)

var reasonNames = [...]string{
	ReasonNone:                  "none",
	ReasonNoQP:                  "no QP available",
	ReasonNoEEC:                 "no EE context available",
	ReasonNoResources:           "no resources available",
	ReasonTimeout:               "timeout",
	ReasonUnsupported:           "unsupported request",
	ReasonInvalidCommID:         "invalid communication ID",
	ReasonInvalidCommInstance:   "invalid communication instance",
	ReasonInvalidServiceID:      "invalid service ID",
	ReasonInvalidTransport:      "invalid transport service type",
	ReasonStaleConnection:       "stale connection",
	ReasonRDCNotExist:           "RDC does not exist",
	ReasonInvalidGID:            "invalid primary GID",
	ReasonInvalidLID:            "invalid primary LID",
	ReasonInvalidSL:             "invalid primary SL",
	ReasonInvalidTrafficClass:   "invalid primary traffic class",
	ReasonInvalidHopLimit:       "invalid primary hop limit",
	ReasonInvalidPacketRate:     "invalid primary packet rate",
	ReasonInvalidAltGID:         "invalid alternate GID",
	ReasonInvalidAltLID:         "invalid alternate LID",
	ReasonInvalidAltSL:          "invalid alternate SL",
	ReasonInvalidAltTrafficCl:   "invalid alternate traffic class",
	ReasonInvalidAltHopLimit:    "invalid alternate hop limit",
	ReasonInvalidAltPacketRate:  "invalid alternate packet rate",
	ReasonCMRedirect:            "port and CM redirection",
	ReasonPortRedirect:          "port redirection",
	ReasonInvalidMTU:            "invalid path MTU",
	ReasonInsufficientResources: "insufficient responder resources",
	ReasonConsumer:              "consumer reject",
	ReasonInvalidRNRRetry:       "RNR retry count rejected",
	ReasonDuplicateCommID:       "duplicate local communication ID",
	ReasonInvalidClassVersion:   "invalid class version",
	ReasonInvalidFlowLabel:      "invalid primary flow label",
	ReasonInvalidAltFlowLabel:   "invalid alternate flow label",
	ReasonVendorOption:          "vendor option not supported",
}

// String returns the name and number of the reason.
func (r Reason) String() string {
	if int(r) < len(reasonNames) && reasonNames[r] != "" {
		return fmt.Sprintf("%s (reason %d)", reasonNames[r], uint16(r))
	}
	return fmt.Sprintf("reason %d", uint16(r))
}

// Answered is the message that an MRA or a REJ answers; two bits on the wire.
type Answered uint8

// The values.
const (
	AnswersREQ   Answered = 0
	AnswersREP   Answered = 1
	AnswersOther Answered = 2 // REJ: none; MRA: a LAP
)

// SIDRStatus is the answer to a service ID resolution (IBA 12.11.2).
type SIDRStatus uint8

// The statuses.
const (
	SIDRSuccess            SIDRStatus = 0
	SIDRUnsupportedService SIDRStatus = 1
	SIDRRejected           SIDRStatus = 2
	SIDRNoQP               SIDRStatus = 3
	SIDRRedirect           SIDRStatus = 4
	SIDRUnsupportedVersion SIDRStatus = 5
)

var sidrNames = [...]string{
	"success", "service ID not supported", "rejected by the service provider", "no QP available",
	"redirect", "class version not supported",
}

func (s SIDRStatus) String() string {
	if int(s) < len(sidrNames) {
		return sidrNames[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

package bth

import (
	"fmt"
	"time"
)

// Syndrome is the first byte of an AETH: its top three bits say the kind, the
// other five carry credits, a timer code or a NAK code (IBA 9.7.5.2).
type Syndrome uint8

// SyndromeKind is what a syndrome announces. Its value is the syndrome's top three bits.
type SyndromeKind uint8

// The kinds. Every bit pattern that the architecture reserves is SyndromeReserved.
const (
	SyndromeACK      SyndromeKind = 0
	SyndromeRNR      SyndromeKind = 1
	SyndromeReserved SyndromeKind = 2
	SyndromeNAK      SyndromeKind = 3
)

// ACKNoLimit is a positive acknowledgement without end-to-end credits: code 31.
const ACKNoLimit Syndrome = 31

// ACKSyndrome returns a positive acknowledgement with a 5-bit credit code.
func ACKSyndrome(credits uint8) Syndrome { return Syndrome(credits & 31) }

// RNRSyndrome returns a receiver-not-ready NAK with a 5-bit timer code.
func RNRSyndrome(timer uint8) Syndrome { return Syndrome(SyndromeRNR)<<5 | Syndrome(timer&31) }

// NAKSyndrome returns a NAK with its code.
func NAKSyndrome(c NAKCode) Syndrome { return Syndrome(SyndromeNAK)<<5 | Syndrome(c&31) }

// Kind returns what the syndrome announces.
func (s Syndrome) Kind() SyndromeKind {
	switch k := SyndromeKind(s >> 5); k {
	case SyndromeACK, SyndromeRNR, SyndromeNAK:
		return k
	}
	return SyndromeReserved
}

// Credits returns the 5-bit credit code of an ACK; 31 means no limit.
func (s Syndrome) Credits() uint8 { return uint8(s & 31) }

// RNRTimer returns the 5-bit timer code of an RNR NAK; see RNRDelay.
func (s Syndrome) RNRTimer() uint8 { return uint8(s & 31) }

// NAKCode returns the code of a NAK.
func (s Syndrome) NAKCode() NAKCode { return NAKCode(s & 31) }

// String returns "ACK", "ACK credits 5", "RNR NAK timer 12", "NAK PSN sequence error" and so on.
func (s Syndrome) String() string {
	switch s.Kind() {
	case SyndromeACK:
		if s == ACKNoLimit {
			return "ACK"
		}
		return fmt.Sprintf("ACK credits %d", s.Credits())
	case SyndromeRNR:
		return fmt.Sprintf("RNR NAK timer %d", s.RNRTimer())
	case SyndromeNAK:
		return "NAK " + s.NAKCode().String()
	}
	return fmt.Sprintf("reserved syndrome 0x%02x", uint8(s))
}

// NAKCode is the reason of a NAK (IBA 9.7.5.2).
type NAKCode uint8

// The codes; 5 to 31 are reserved.
const (
	NAKPSNSequence NAKCode = iota
	NAKInvalidRequest
	NAKRemoteAccess
	NAKRemoteOperational
	NAKInvalidRD
)

var nakNames = [...]string{
	NAKPSNSequence:       "PSN sequence error",
	NAKInvalidRequest:    "invalid request",
	NAKRemoteAccess:      "remote access error",
	NAKRemoteOperational: "remote operational error",
	NAKInvalidRD:         "invalid RD request",
}

// String returns the code's name.
func (c NAKCode) String() string {
	if int(c) < len(nakNames) {
		return nakNames[c]
	}
	return fmt.Sprintf("reserved code %d", uint8(c))
}

// rnrDelays are the 32 RNR NAK timer values (IBA 9.7.5.2.8, table of RNR NAK
// timer field encodings). The steps alternate 3/2 and 4/3; code 0 is the longest.
var rnrDelays = [32]time.Duration{
	655360 * time.Microsecond, 10 * time.Microsecond, 20 * time.Microsecond, 30 * time.Microsecond,
	40 * time.Microsecond, 60 * time.Microsecond, 80 * time.Microsecond, 120 * time.Microsecond,
	160 * time.Microsecond, 240 * time.Microsecond, 320 * time.Microsecond, 480 * time.Microsecond,
	640 * time.Microsecond, 960 * time.Microsecond, 1280 * time.Microsecond, 1920 * time.Microsecond,
	2560 * time.Microsecond, 3840 * time.Microsecond, 5120 * time.Microsecond, 7680 * time.Microsecond,
	10240 * time.Microsecond, 15360 * time.Microsecond, 20480 * time.Microsecond, 30720 * time.Microsecond,
	40960 * time.Microsecond, 61440 * time.Microsecond, 81920 * time.Microsecond, 122880 * time.Microsecond,
	163840 * time.Microsecond, 245760 * time.Microsecond, 327680 * time.Microsecond, 491520 * time.Microsecond,
}

// RNRDelay returns how long a requester waits at least after an RNR NAK with that
// 5-bit timer code.
func RNRDelay(timer uint8) time.Duration { return rnrDelays[timer&31] }

// AckTimeout returns the Local ACK Timeout of a 5-bit exponent: 4.096 us x 2^exp,
// and 0 for exponent 0, which switches the timer off (IBA 9.7.6.1.3).
func AckTimeout(exp uint8) time.Duration {
	if exp &= 31; exp != 0 {
		return 4096 * time.Nanosecond << exp
	}
	return 0
}

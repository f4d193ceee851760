package bth

import (
	"fmt"
	"time"
)

// Syndrome is the first byte of an AETH. Its top three bits are the kind; the other five are
// credits, a timer code or a NAK code (IBA 9.7.5.2).
type Syndrome uint8

// SyndromeKind is the kind of a syndrome. Its value is the top three bits of the syndrome.
type SyndromeKind uint8

// The kinds. SyndromeReserved is the kind of every reserved bit pattern.
const (
	SyndromeACK      SyndromeKind = 0
	SyndromeRNR      SyndromeKind = 1
	SyndromeReserved SyndromeKind = 2
	SyndromeNAK      SyndromeKind = 3
)

// ACKNoLimit is a positive acknowledgment without end-to-end credits (credit code 31).
const ACKNoLimit Syndrome = 31

// ACKSyndrome returns a positive acknowledgment with a 5-bit credit code.
func ACKSyndrome(credits uint8) Syndrome { return Syndrome(credits & 31) }

// RNRSyndrome returns a receiver-not-ready NAK with a 5-bit timer code.
func RNRSyndrome(timer uint8) Syndrome { return Syndrome(SyndromeRNR)<<5 | Syndrome(timer&31) }

// NAKSyndrome returns a NAK with the given code.
func NAKSyndrome(c NAKCode) Syndrome { return Syndrome(SyndromeNAK)<<5 | Syndrome(c&31) }

// Kind returns the kind of the syndrome.
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

// String returns a description such as "ACK", "ACK credits 5", "RNR NAK timer 12" or "NAK PSN
// sequence error".
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

// The NAK codes. Codes 5 to 31 are reserved.
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

// String returns the name of the code.
func (c NAKCode) String() string {
	if int(c) < len(nakNames) {
		return nakNames[c]
	}
	return fmt.Sprintf("reserved code %d", uint8(c))
}

// rnrDelays are the delays of the 32 RNR NAK timer codes (IBA 9.7.5.2.8). Code 0 is the longest.
var rnrDelays = [32]time.Duration{
	655360 * time.Microsecond, 10 * time.Microsecond, 20 * time.Microsecond, 30 * time.Microsecond,
	40 * time.Microsecond, 60 * time.Microsecond, 80 * time.Microsecond, 120 * time.Microsecond,
	160 * time.Microsecond, 240 * time.Microsecond, 320 * time.Microsecond, 480 * time.Microsecond,
	640 * time.Microsecond, 960 * time.Microsecond, 1280 * time.Microsecond,
	1920 * time.Microsecond,
	2560 * time.Microsecond, 3840 * time.Microsecond, 5120 * time.Microsecond,
	7680 * time.Microsecond,
	10240 * time.Microsecond, 15360 * time.Microsecond, 20480 * time.Microsecond,
	30720 * time.Microsecond,
	40960 * time.Microsecond, 61440 * time.Microsecond, 81920 * time.Microsecond,
	122880 * time.Microsecond,
	163840 * time.Microsecond, 245760 * time.Microsecond, 327680 * time.Microsecond,
	491520 * time.Microsecond,
}

// RNRDelay returns the minimum time that a requester waits after an RNR NAK with the given 5-bit
// timer code.
func RNRDelay(timer uint8) time.Duration { return rnrDelays[timer&31] }

// AckTimeout returns the local ACK timeout of a 5-bit exponent: 4.096 us * 2^exp, or 0 for exponent
// 0, which disables the timer (IBA 9.7.6.1.3).
func AckTimeout(exp uint8) time.Duration {
	if exp &= 31; exp != 0 {
		return 4096 * time.Nanosecond << exp
	}
	return 0
}

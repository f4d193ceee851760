package bth

import (
	"testing"
	"time"
)

// IBA 9.7.5.2: the top three bits are the kind. 010 and everything from 100 is reserved.
func TestSyndromeKinds(t *testing.T) {
	for s := range 256 {
		want := SyndromeReserved
		switch s >> 5 {
		case 0:
			want = SyndromeACK
		case 1:
			want = SyndromeRNR
		case 3:
			want = SyndromeNAK
		}
		if got := Syndrome(s).Kind(); got != want {
			t.Errorf("Syndrome(%#02x).Kind() = %d, want %d", s, got, want)
		}
	}
}

func TestSyndromeValues(t *testing.T) {
	for _, c := range []struct {
		s    Syndrome
		want uint8
		text string
	}{
		{ACKSyndrome(31), 0x1f, "ACK"},
		{ACKSyndrome(5), 0x05, "ACK credits 5"},
		{RNRSyndrome(12), 0x2c, "RNR NAK timer 12"},
		{RNRSyndrome(44), 0x2c, "RNR NAK timer 12"},
		{NAKSyndrome(NAKPSNSequence), 0x60, "NAK PSN sequence error"},
		{NAKSyndrome(NAKInvalidRequest), 0x61, "NAK invalid request"},
		{NAKSyndrome(NAKRemoteAccess), 0x62, "NAK remote access error"},
		{NAKSyndrome(NAKRemoteOperational), 0x63, "NAK remote operational error"},
		{NAKSyndrome(NAKInvalidRD), 0x64, "NAK invalid RD request"},
		{Syndrome(0x7f), 0x7f, "NAK reserved code 31"},
		{Syndrome(0x80), 0x80, "reserved syndrome 0x80"},
	} {
		if uint8(c.s) != c.want || c.s.String() != c.text {
			t.Errorf("%#02x %q, want %#02x %q", uint8(c.s), c.s, c.want, c.text)
		}
	}
	if ACKNoLimit != ACKSyndrome(31) {
		t.Error("ACKNoLimit is not credit code 31")
	}
	if s := RNRSyndrome(9); s.RNRTimer() != 9 || ACKSyndrome(7).Credits() != 7 ||
		NAKSyndrome(3).NAKCode() != NAKRemoteOperational {
		t.Error("RNRTimer, Credits or NAKCode differs from the encoded value")
	}
}

// The RNR NAK timer values in milliseconds (IBA 9.7.5.2.8).
func TestRNRDelays(t *testing.T) {
	ms := []float64{
		655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
		1.92,
		2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84,
		245.76, 327.68, 491.52,
	}
	for code, want := range ms {
		if got := RNRDelay(uint8(code)); got != time.Duration(want*1000+0.5)*time.Microsecond {
			t.Errorf("RNRDelay(%d) = %v, want %v ms", code, got, want)
		}
	}
	if RNRDelay(33) != RNRDelay(1) {
		t.Error("RNRDelay does not ignore the upper bits")
	}
}

func TestAckTimeout(t *testing.T) {
	for exp, want := range map[uint8]time.Duration{
		0: 0, 1: 8192 * time.Nanosecond, 14: 67108864 * time.Nanosecond, 31: 4096 << 31, 32: 0,
		33: 8192,
	} {
		if got := AckTimeout(exp); got != want {
			t.Errorf("AckTimeout(%d) = %v, want %v", exp, got, want)
		}
	}
}

package perftest

import (
	"bytes"
	"fmt"
	"strconv"
)

// What gorxe announces: high enough for every peer, low enough that none wants
// to compare parameters, which starts at 6.28.
const announced = "6.20"

// oldest is the oldest version that perftest's current ones talk to.
const oldest = 5.70

const versionLen = 16 // bytes, NUL-padded

// mark stands behind the version's NUL where a gorxe announces itself; its last
// digit is the version of package oob's exchange.
const mark = "gorxe1"

// Hello is what a peer says of itself first.
type Hello struct {
	Version string // "6.06"
	Gorxe   bool   // a gorxe, which goes on with package oob's exchange
}

// Number is the version as perftest compares it.
func (h Hello) Number() float64 {
	v, err := strconv.ParseFloat(h.Version, 64)
	if err != nil {
		return 0 // not from parseHello
	}
	return v
}

// hello is gorxe's first message. marked says that it may show itself as gorxe.
func hello(marked bool) []byte {
	b := make([]byte, versionLen)
	n := copy(b, announced)
	if marked {
		copy(b[n+1:], mark)
	}
	return b
}

// plausibleHello judges the first bytes of a version as they come, so that a
// stranger who sends a few and waits is told apart at once.
func plausibleHello(got []byte) error {
	for i, c := range got {
		switch {
		case c == 0 && i > 0:
			return nil
		case c < '0' || c > '9':
			if c != '.' || i == 0 {
				return ErrGarbage
			}
		}
	}
	if len(got) == versionLen {
		return ErrGarbage // a version ends with a NUL
	}
	return nil
}

// parseHello reads a whole version message.
func parseHello(b []byte) (Hello, error) {
	text, rest, _ := bytes.Cut(b, []byte{0})
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return Hello{}, fmt.Errorf("%w: it sent %s", ErrGarbage, quote(b))
	}
	h := Hello{Version: string(text), Gorxe: bytes.HasPrefix(rest, []byte(mark))}
	if v < oldest {
		return h, fmt.Errorf("%w (it says %q)", ErrVersion, h.Version)
	}
	return h, nil
}

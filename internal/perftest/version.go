package perftest

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"github.com/gorxe/gorxe/internal/peerio"
)

// announced is the version that gorxe sends. It is high enough for every peer, and below 6.28, from
// which on perftest compares parameters.
const announced = "6.20"

// oldest is the oldest version that current versions of perftest accept.
const oldest = 5.70

const versionLen = 16 // bytes, NUL-padded

// mark follows the version's NUL in the hello of a gorxe. Its last digit is the version of the
// protocol in package exchange.
const mark = "gorxe1"

// Hello is the first message of a peer.
type Hello struct {
	Version string // "6.06"
	Gorxe   bool   // the peer is a gorxe and continues with the protocol of package exchange
}

// Number returns the version as the number that perftest compares.
func (h Hello) Number() float64 {
	v, err := strconv.ParseFloat(h.Version, 64)
	if err != nil {
		return 0 // the Hello is not from parseHello
	}
	return v
}

// hello returns gorxe's first message. marked adds the mark of gorxe.
func hello(marked bool) []byte {
	b := make([]byte, versionLen)
	n := copy(b, announced)
	if marked {
		copy(b[n+1:], mark)
	}
	return b
}

// plausibleHello returns an error if got cannot be the first bytes of a hello. It recognizes
// another protocol even if the peer sends only a few bytes and then waits.
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

func (l *Link) receiveHello(ctx context.Context) (Hello, error) {
	_, b, err := l.receive(ctx, kindHello, l.timeout)
	if err != nil {
		return Hello{}, err
	}
	return parseHello(b)
}

// parseHello parses a complete hello.
func parseHello(b []byte) (Hello, error) {
	text, rest, _ := bytes.Cut(b, []byte{0})
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return Hello{}, fmt.Errorf("%w: it sent %s", ErrGarbage, peerio.Quote(b))
	}
	h := Hello{Version: string(text), Gorxe: bytes.HasPrefix(rest, []byte(mark))}
	if v < oldest {
		return h, fmt.Errorf("%w (it announces %q)", ErrVersion, h.Version)
	}
	return h, nil
}

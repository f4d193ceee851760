package blocks

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/roce"
)

var (
	errPeer     = errors.New("not this protocol")
	errMismatch = errors.New("does not fit")
	proto       = Protocol{Magic: [4]byte{'T', 'E', 'S', 'T'}, ErrPeer: errPeer,
		ErrMismatch: errMismatch, Advice: "do this"}
)

// A message is parsed whatever follows it. Shorter messages, other protocols and other versions are
// not.
func TestParse(t *testing.T) {
	want := Sizes{Blocks: 0xffff, Size: 1 << 28}
	good := proto.Put(nil, want)
	if len(good) != SizesLen {
		t.Fatalf("%d bytes", len(good))
	}
	if got, err := proto.Parse(append(good, 1, 2, 3)); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	for n := range SizesLen {
		if _, err := proto.Parse(good[:n]); !errors.Is(err, errPeer) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for at := range 5 { // magic, version
		bad := append([]byte(nil), good...)
		bad[at]++
		if _, err := proto.Parse(bad); !errors.Is(err, errPeer) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
}

// A sender may leave either number to the receiver. Otherwise both must match, and the error has
// both sides' values.
func TestAgree(t *testing.T) {
	have := Sizes{Blocks: 3, Size: 1000}
	for _, c := range []struct {
		want Sizes
		says string // "" means that they agree
	}{
		{have, ""}, {Sizes{}, ""}, {Sizes{Blocks: 3}, ""}, {Sizes{Size: 1000}, ""},
		{Sizes{Blocks: 4, Size: 1000}, "4 blocks of 1000 bytes"},
		{Sizes{Blocks: 4}, "wants 4 blocks:"}, {Sizes{Size: 999}, "wants blocks of 999 bytes:"},
	} {
		err := proto.Agree(have, c.want)
		switch {
		case c.says == "" && err != nil, c.says != "" && !errors.Is(err, errMismatch):
			t.Errorf("%+v: %v", c.want, err)
		case c.says != "" &&
			(!strings.Contains(err.Error(), c.says) ||
				!strings.Contains(err.Error(), "3 blocks of 1000 bytes") ||
				!strings.HasSuffix(err.Error(), "do this")):
			t.Errorf("%+v: %v", c.want, err)
		}
	}
}

// A rejection with the receiver's sizes becomes a mismatch if they differ. Others stay unchanged.
func TestRefused(t *testing.T) {
	no := func(private []byte) error {
		return fmt.Errorf("dial: %w",
			&roce.RejectError{Reason: roce.RejectConsumer, PrivateData: private})
	}
	want := Sizes{Blocks: 4}
	other := errors.New("no answer")
	for name, c := range map[string]struct {
		err error
		is  error
	}{
		"sizes":          {no(proto.Put(nil, Sizes{Blocks: 3, Size: 10})), errMismatch},
		"the same sizes": {no(proto.Put(nil, Sizes{Blocks: 4, Size: 10})), nil},
		"no words":       {no(nil), nil},
		"no refusal":     {other, other},
	} {
		got := proto.Refused(c.err, want)
		if c.is == nil && got != c.err || c.is != nil && !errors.Is(got, c.is) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

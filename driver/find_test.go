package driver_test

import (
	"testing"

	"github.com/gorxe/gorxe/driver"
)

// held is a Port with an optional interface.
type held struct {
	driver.Port
	holds int
}

func (h *held) Hold()   { h.holds++ }
func (h *held) Unhold() {}

type wrapped struct{ driver.Port }

func (w wrapped) Unwrap() driver.Port { return w.Port }

// opaque has an inner Port, but no Unwrap.
type opaque struct{ driver.Port }

func TestFind(t *testing.T) {
	inner, outer := &held{}, &held{}
	for _, c := range []struct {
		name string
		port driver.Port
		want driver.Holder
	}{
		{"nil", nil, nil},
		{"itself", inner, inner},
		{"in two wrappers", wrapped{wrapped{inner}}, inner},
		{"outermost of two", wrapped{&struct {
			wrapped
			driver.Holder
		}{wrapped{inner}, outer}}, outer},
		{"none", wrapped{opaque{inner}}, nil},
	} {
		got, ok := driver.Find[driver.Holder](c.port)
		if ok != (c.want != nil) {
			t.Errorf("%s: Find() = %v, %v", c.name, got, ok)
			continue
		}
		if ok {
			before := c.want.(*held).holds
			if got.Hold(); c.want.(*held).holds != before+1 {
				t.Errorf("%s: Find returned another Port", c.name)
			}
		}
	}
}

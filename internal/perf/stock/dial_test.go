package stock

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/roce"
)

// A host that was not found leads to no advice about its server.
func TestCMError(t *testing.T) {
	for err, want := range map[error]bool{roce.ErrUnreachable: false, roce.ErrRefused: true} {
		got := cmError(netip.MustParseAddrPort("10.0.0.1:18515"), err)
		if !errors.Is(got, err) || strings.Contains(got.Error(), "perftest server") != want {
			t.Errorf("%v", got)
		}
	}
}

package device

import (
	"fmt"
	"strconv"

	"github.com/gorxe/gorxe/roce"
)

// PKey is a partition key, or 0 for the default partition. *PKey is a flag value.
type PKey roce.PKey

// Set implements pflag.Value. It accepts decimal and hexadecimal numbers.
func (p *PKey) Set(text string) error {
	n, err := strconv.ParseUint(text, 0, 16)
	if err != nil || n&0x7fff == 0 {
		return fmt.Errorf("%q is not a P_Key: write a number such as 0x8001 (0x8000 + the partition, 1 to 0x7fff; without 0x8000 a limited member)",
			text)
	}
	*p = PKey(n)
	return nil
}

// String implements pflag.Value.
func (p *PKey) String() string {
	if *p == 0 {
		return ""
	}
	return fmt.Sprintf("%#04x", uint16(*p))
}

// Type implements pflag.Value.
func (p *PKey) Type() string { return "key" }

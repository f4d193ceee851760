package device

import "testing"

func TestPKeyFlag(t *testing.T) {
	var p PKey
	if p.String() != "" {
		t.Errorf("String() = %q before Set, want an empty text", p.String())
	}
	for _, text := range []string{"", "x", "-1", "0", "0x8000", "0x10000", "65536", "1.5"} {
		if err := p.Set(text); err == nil || p != 0 {
			t.Errorf("Set(%q) = %v and the P_Key is %#04x, want an error", text, err, uint16(p))
		}
	}
	for text, want := range map[string]PKey{"0x8001": 0x8001, "1": 1, "0xffff": 0xffff} {
		if err := p.Set(text); err != nil || p != want {
			t.Errorf("Set(%q) = %v and the P_Key is %#04x, want %#04x", text, err, uint16(p),
				uint16(want))
		}
	}
	if p = 1; p.String() != "0x0001" {
		t.Errorf("String() = %q, want 0x0001", p.String())
	}
}

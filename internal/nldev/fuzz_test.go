package nldev

import "testing"

// FuzzAnswer answers requests of hostile programs: each answer is a whole message, and requests do
// not cause more answers than they have messages of the least size.
func FuzzAnswer(f *testing.F) {
	f.Add(request(cmdGet, 1|0x300, nil))
	f.Add(request(cmdQPs, 1|0x300, nil))
	f.Add(request(cmdPortGet, 1, func(m *message) {}))
	f.Add(append(request(cmdResGet, 1, nil), request(cmdGetChardev, 1, nil)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		const each = 3 // answers: of a dump of one device with one port, its end, an error
		list := Answer(in, 77, device)
		if limit := each * (len(in)/headerSize + 1); len(list) > limit {
			t.Errorf("%d answers to %d bytes, want at most %d", len(list), len(in), limit)
		}
		for i, m := range list {
			if h, ok := parseHeader(m); !ok || int(h.length) != len(m) {
				t.Errorf("answer %d has %d bytes and header %+v", i, len(m), h)
			}
		}
	})
}

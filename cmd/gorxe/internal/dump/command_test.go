package dump

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/bth/bthtest"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/cli"
)

// ngMagic is the start of a pcapng file.
var ngMagic = []byte{0x0a, 0x0d, 0x0d, 0x0a}

// result is the outcome of a run of the command.
type result struct {
	out, errs string
	err       error
}

func run(t *testing.T, stdin io.Reader, args ...string) result {
	t.Helper()
	var out, errs strings.Builder
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetIn(stdin)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetContext(context.Background())
	err := cmd.Execute()
	return result{out.String(), errs.String(), err}
}

// records parses the lines of --json.
func (r result) records(t *testing.T) []map[string]any {
	t.Helper()
	if r.err != nil {
		t.Fatal(r.err)
	}
	var all []map[string]any
	for line := range strings.Lines(r.out) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, m)
	}
	return all
}

// writePcap returns a pcap file with frames one second apart.
func writePcap(t *testing.T, frames [][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriterNanos(&b)
	if err := w.WriteFileHeader(65536, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		info := gopacket.CaptureInfo{Timestamp: time.Unix(1000+int64(i), 0), CaptureLength: len(f),
			Length: len(f)}
		if err := w.WritePacket(info, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func writeFile(t *testing.T, b []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.pcap")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// captureFile writes one of the captures of rxe to a temporary file.
func captureFile(t *testing.T, name string) string {
	return writeFile(t, writePcap(t, bthtest.Frames(t, name)))
}

// For every capture, --json prints a line for each RoCE packet with the frame's number and the
// fields that the decoder finds.
func TestJSONOfCaptures(t *testing.T) {
	total := 0
	for _, name := range bthtest.Names(t) {
		frames := bthtest.Frames(t, name)
		records := run(t, nil, "--json", captureFile(t, name)).records(t)
		for i, f := range frames {
			var p bth.Packet
			if new(frame.Decoder).Decode(f, &p) != frame.ReasonOK {
				continue
			}
			if len(records) == 0 {
				t.Fatalf("%s: no record for frame %d", name, i+1)
			}
			r := records[0]
			records = records[1:]
			total++
			if r["n"] != float64(i+1) || r["opcode"] != p.BTH.Opcode().String() ||
				r["icrc"] != "ok" ||
				r["dest_qp"] != float64(p.BTH.DestQP()) || r["psn"] != float64(p.BTH.PSN()) ||
				r["payload"] != float64(len(p.Payload)) || r["src"] != p.Src.Addr().String() {
				t.Fatalf("%s, frame %d: %v", name, i+1, r)
			}
		}
		if len(records) != 0 {
			t.Fatalf("%s: %d records too many", name, len(records))
		}
	}
	if total != 1359 {
		t.Errorf("%d records, want 1359", total)
	}
}

// packet builds a frame with a correct ICRC.
func packet(o bth.Opcode, put func(t []byte), payload int) []byte {
	return packetTo(new(frame.Address), o, put, payload)
}

// packetTo is packet with some fields of a. It sets the others.
func packetTo(a *frame.Address, o bth.Opcode, put func(t []byte), payload int) []byte {
	h := int(o.Info().HeaderLen)
	f := make([]byte, bth.MaxNetHeader+h+payload+3+bth.ICRCLen)
	a.Src, a.Dst = bth.GIDFromIPv4([4]byte{10, 77, 0, 1}), bth.GIDFromIPv4([4]byte{10, 77, 0, 2})
	a.HopLimit, a.SrcPort = 64, 0xc001
	n := frame.PutHeaders(f, a)
	pad := -payload & 3
	bth.PutBTH(f[n:], &bth.BTHFields{Opcode: o, PKey: bth.DefaultPKey, DestQP: 0x11, PSN: 0x500,
		PadCount: uint8(pad)})
	if put != nil {
		put(f[n:])
	}
	f = f[:n+h+payload+pad+bth.ICRCLen]
	new(frame.Encoder).Finish(f, n)
	return f
}

// The fields of every extension header are printed, as JSON and as text.
func TestFields(t *testing.T) {
	for _, c := range []struct {
		opcode bth.Opcode
		put    func(b []byte)
		n      int
		json   string
		text   string
	}{
		{bth.RCWriteOnlyImm,
			func(b []byte) {
				bth.PutRETH(b[12:], 0xffffffffffffffff, 0x42, 5)
				bth.PutImmDt(b[28:],
					0)
			}, 5,
			`"opcode":"RC RDMA WRITE Only with Immediate" "dest_qp":17 "psn":1280 "icrc":"ok" "pad":3 "payload":5 "va":18446744073709551615 "rkey":66 "dma_len":5 "imm":0`,
			"RC RDMA WRITE Only with Immediate  qp 0x000011 psn 0x000500  va 0xffffffffffffffff rkey 0x00000042 len 5  imm 0x00000000  5 B"},
		{bth.RCAck, func(b []byte) { bth.PutAETH(b[12:], bth.NAKSyndrome(bth.NAKRemoteAccess), 7) },
			0,
			`"syndrome":98 "ack":"NAK remote access error" "msn":7`,
			"NAK remote access error msn 7"},
		{bth.RCAtomicAck, func(b []byte) {
			bth.PutAETH(b[12:], bth.ACKNoLimit,
				1)
			bth.PutAtomicAckETH(b[16:], 9)
		}, 0,
			`"ack":"ACK" "original":9`, "ACK msn 1  original 0x9"},
		{bth.RCCmpSwap, func(b []byte) { bth.PutAtomicETH(b[12:], 8, 2, 3, 4) }, 0,
			`"va":8 "rkey":2 "swap_add":3 "compare":4`,
			"va 0x8 rkey 0x00000002 swap/add 0x3 compare 0x4"},
		{bth.RCSendOnlyInv, func(b []byte) { bth.PutIETH(b[12:], 5) }, 4,
			`"inv_rkey":5 "payload":4`, "invalidate 0x00000005  4 B"},
		{bth.UDSendOnly, func(b []byte) { bth.PutDETH(b[12:], bth.QKeyGSI, 1) }, 4,
			`"qkey":2147549184 "src_qp":1`, "from qp 0x000001 qkey 0x80010000"},
		{bth.RCFlush, func(b []byte) {
			bth.PutFETH(b[12:], 2, 1)
			bth.PutRETH(b[16:], 4096, 3,
				64)
		}, 0,
			`"placement":2 "selectivity":1 "va":4096`, "placement 2 selectivity 1  va 0x1000"},
		{bth.RCSendOnly, func(b []byte) { bth.BTH(b)[8] |= 0x80; b[1] |= 0x80; b[4] = 0xc0; b[2] = 0x7f }, 0,
			`"ack_req":true "se":true "fecn":true "becn":true "pkey":32767`,
			"ack_req  se  fecn  becn  pkey 0x7fff"},
		{bth.RCAck, func(b []byte) {
			bth.PutAETH(b[12:], bth.NAKSyndrome(bth.NAKPSNSequence), 7)
			bth.PutSelACK(b[16:], 0xfffff0, 2, []uint32{0x60000001, 0x80000000})
		}, 16,
			`"ack":"NAK PSN sequence error" "payload":16 "ecn":0 "selack":{"duplicates":2,"start":16777200,"packets":64,"held":[[16777201,16777202],[15,16]]}`,
			"NAK PSN sequence error msn 7  held 0xfffff1-0xfffff2 0x00000f-0x000010 dup 2\n"},
		{bth.RCAck, func(b []byte) { bth.PutSelACK(b[16:], 5, 3, nil) }, 8,
			`"selack":{"duplicates":3,"start":5,"packets":0,"held":[]}`, "held none dup 3\n"},
		{bth.RCAck, func(b []byte) { bth.PutSelACK(b[16:], 0, 0, []uint32{0x55555555}) }, 12,
			`"held":[[1,1],[3,3],`, "held 0x000001 0x000003 0x000005 0x000007 0x000009 0x00000b " +
				"0x00000d 0x00000f and 8 more dup 0\n"},
		{bth.RCAck, func(b []byte) { b[16] = 2 }, 8, `"payload":8`, "  8 B\n"},
		{bth.CNP, func(b []byte) { bth.PutCNP(b, bth.DefaultPKey, 9) }, 16,
			`"opcode":"CNP" "becn":true "dest_qp":9 "psn":0 "payload":16`,
			"CNP  qp 0x000009 psn 0x000000  becn\n"},
	} {
		name := writeFile(t, writePcap(t, [][]byte{packet(c.opcode, c.put, c.n)}))
		asJSON := run(t, nil, "--json", name)
		for _, field := range strings.SplitAfter(c.json, ` "`) {
			if field = strings.TrimSuffix(field, ` "`); !strings.Contains(asJSON.out,
				strings.TrimPrefix(field, `"`)) {
				t.Errorf("%v: no %s in %s", c.opcode, field, asJSON.out)
			}
		}
		if text := run(t, nil, name); !strings.Contains(text.out, c.text) {
			t.Errorf("%v: no %q in %s", c.opcode, c.text, text.out)
		}
	}
}

// The traffic class follows from the DSCP and the priority of the VLAN tag.
func TestClasses(t *testing.T) {
	for _, c := range []struct {
		class uint8  // IPv4 TOS
		vlan  uint16 // tag control information
		args  []string
		json  string
		text  string
	}{
		{0, 0, nil, `"class":0,"dscp":0,"ecn":0`, "psn 0x000500  4 B\n"},
		{2, 0, nil, `"class":0,"dscp":0,"ecn":2`, "psn 0x000500  4 B\n"},
		{40<<2 | 2, 0, nil, `"class":5,"dscp":40,"ecn":2`, "  class 5 dscp 40  4 B\n"},
		{46<<2 | 3, 0, nil, `"class":5,"dscp":46,"ecn":3`, "  class 5 dscp 46  ce  4 B\n"},
		{46 << 2, 0, []string{"--class-map", "7:46"}, `"class":7,"dscp":46,"ecn":0`,
			"  class 7 dscp 46  4 B\n"},
		{7 << 2, 0, nil, `"class":0,"dscp":7,"ecn":0`, "  class 0 dscp 7  4 B\n"},
		{0, 9, nil, `"vlan":9,"pcp":0,`, "psn 0x000500  vlan 9  4 B\n"},
		{48 << 2, 6<<13 | 9, nil, `"vlan":9,"pcp":6,`, "  vlan 9 pcp 6  class 6 dscp 48  4 B\n"},
		{0, 6<<13 | 9, []string{"--class-map", "6:0"}, `"class":6,"dscp":0`,
			"  vlan 9 pcp 6  class 6 dscp 0  4 B\n"},
	} {
		f := packetTo(&frame.Address{TrafficClass: c.class, VLAN: c.vlan}, bth.RCSendOnly, nil, 4)
		name := writeFile(t, writePcap(t, [][]byte{f}))
		if r := run(t, nil, append(c.args, "--json", name)...); !strings.Contains(r.out, c.json) {
			t.Errorf("%+v: no %s in %s", c, c.json, r.out)
		}
		if r := run(t, nil, append(c.args, name)...); !strings.Contains(r.out, c.text) {
			t.Errorf("%+v: no %q in %s", c, c.text, r.out)
		}
	}
}

// JSON omits the fields of headers that the packet does not have.
func TestAbsentFields(t *testing.T) {
	r := run(t, nil, "--json",
		writeFile(t, writePcap(t, [][]byte{packet(bth.RCSendOnly, nil, 4)}))).records(t)[0]
	for _, f := range []string{"pcp", "va", "rkey", "dma_len", "swap_add", "syndrome", "ack", "msn",
		"original", "imm", "inv_rkey", "qkey", "src_qp", "selack", "error"} {
		if v, ok := r[f]; ok {
			t.Errorf("%s = %v in a packet without it", f, v)
		}
	}
}

// Invalid packets are printed with the reason and counted.
func TestBadPackets(t *testing.T) {
	icrc := packet(bth.RCSendOnly, nil, 4)
	icrc[len(icrc)-1] ^= 1
	garbled := packet(bth.RCSendOnly, nil, 4)
	garbled[42] = 0xff
	unknown := packet(0xff, nil, 4)
	udp := packet(bth.RCSendOnly, nil, 4)
	udp[39]++ // UDP length
	arp := append(bytes.Clone(unknown[:12]), 0x08, 0x06, 0, 0, 0, 0, 0, 0)
	options := packet(bth.RCSendOnly, nil, 4)
	options[14] = 0x46
	name := writeFile(t,
		writePcap(t, [][]byte{arp, icrc, garbled, unknown, udp, options,
			packet(bth.RCAck, nil, 0)}))

	records := run(t, nil, "--json", name).records(t)
	var got []string
	for _, r := range records {
		e, _ := r["error"].(string)
		got = append(got, r["opcode"].(string)+"|"+r["icrc"].(string)+"|"+e)
	}
	want := []string{"RC SEND Only|bad|", "unknown 0xff|bad|", "unknown 0xff|ok|unknown opcode",
		"RC Acknowledge|ok|"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	text := run(t, nil, name)
	for _, line := range []string{"RC SEND Only  qp 0x000011 psn 0x000500  4 B  BAD ICRC",
		"REFUSED: unknown opcode", "REFUSED: bad UDP length"} {
		if !strings.Contains(text.out, line) {
			t.Errorf("no %q in\n%s", line, text.out)
		}
	}
	wantSum := "7 frames, 5 RoCEv2, 2 with a bad ICRC\n1 refused: IP options\n1 refused: bad UDP length\n1 refused: unknown opcode\n"
	if text.errs != wantSum {
		t.Errorf("summary\n%swant\n%s", text.errs, wantSum)
	}
}

// -w writes the RoCE frames with their times as pcapng. Dumping that file prints the same.
func TestSave(t *testing.T) {
	in := captureFile(t, "rdmacm_rping_connect.pcap")
	saved := filepath.Join(t.TempDir(), "saved.pcapng")
	first := run(t, nil, "--json", "-w", saved, in)
	b, err := os.ReadFile(saved)
	if err != nil || !bytes.HasPrefix(b, ngMagic) {
		t.Fatalf("%v; the file starts with % x, want % x", err, b[:min(len(b), 4)], ngMagic)
	}
	a, z := first.records(t), run(t, nil, "--json", saved).records(t)
	if len(a) == 0 || len(a) != len(z) {
		t.Fatalf("%d packets printed, %d saved", len(a), len(z))
	}
	for i := range a {
		delete(a[i], "n")
		delete(z[i], "n")
		if one, other := mustJSON(t, a[i]), mustJSON(t, z[i]); one != other {
			t.Fatalf("packet %d\n%s\nwas saved as\n%s", i+1, one, other)
		}
	}
	// With - the file replaces the lines on stdout.
	if piped := run(t, nil, "-w", "-", in); piped.err != nil || piped.out != string(b) {
		t.Errorf("-w - wrote %d bytes, want the file's %d", len(piped.out), len(b))
	}
	// The file is valid without frames too.
	empty := filepath.Join(t.TempDir(), "empty.pcapng")
	if r := run(t, nil, "-w", empty, writeFile(t, writePcap(t, nil))); r.err != nil {
		t.Fatal(r.err)
	}
	if r := run(t, nil, empty); r.err != nil ||
		r.errs != "0 frames, 0 RoCEv2, 0 with a bad ICRC\n" {
		t.Errorf("%v, %q", r.err, r.errs)
	}
}

func mustJSON(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestStdinAndGzip(t *testing.T) {
	plain := writePcap(t, bthtest.Frames(t, "rc_read.pcap"))
	want := run(t, nil, "--json", writeFile(t, plain)).out
	if got := run(t, bytes.NewReader(plain), "--json", "-"); got.err != nil || got.out != want {
		t.Errorf("from stdin: %v\n%s", got.err, got.out)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(plain); err != nil {
		t.Fatal(err)
	}
	z.Close()
	if got := run(t, nil, "--json", writeFile(t, zipped.Bytes())); got.err != nil ||
		got.out != want {
		t.Errorf("from gzip: %v\n%s", got.err, got.out)
	}
}

func TestCountAndQuiet(t *testing.T) {
	in := captureFile(t, "rc_read.pcap")
	if r := run(t, nil, "-c", "2", in); r.err != nil || strings.Count(r.out, "\n") != 2 {
		t.Errorf("-c 2: %v\n%s", r.err, r.out)
	}
	if r := run(t, nil, "-q", in); r.err != nil || r.out != "" ||
		!strings.Contains(r.errs, "RoCEv2") {
		t.Errorf("-q: %v\n%s%s", r.err, r.out, r.errs)
	}
}

// A full disk is one error, also if many frames are left to be written.
func TestFullDisk(t *testing.T) {
	for _, name := range []string{"rc_read.pcap", "rc_read_multi.pcap"} {
		r := run(t, nil, "-q", "-w", "/dev/full", captureFile(t, name))
		if r.err == nil || strings.Count(r.err.Error(), "/dev/full") != 1 {
			t.Errorf("%s: error %q, want one about /dev/full", name, r.err)
		}
	}
}

// Truncated frames have no ICRC. They are counted, not printed.
func TestTruncatedFrames(t *testing.T) {
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	w.WriteFileHeader(80, layers.LinkTypeEthernet)
	f := packet(bth.RCSendOnly, nil, 200)
	w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: 80,
		Length: len(f)}, f[:80])
	r := run(t, nil, writeFile(t, b.Bytes()))
	if r.err != nil || r.out != "" || !strings.Contains(r.errs, "1 truncated by the capture") {
		t.Errorf("%v\n%s%s", r.err, r.out, r.errs)
	}
}

// Only wrong flags and arguments are usage errors.
func TestErrors(t *testing.T) {
	good := writePcap(t, bthtest.Frames(t, "rc_read.pcap"))
	sll := bytes.Clone(good)
	sll[20] = 113
	ng := append(bytes.Clone(ngMagic), "and so on"...)
	saved := captureFile(t, "rc_read.pcap")
	for _, c := range []struct {
		name string
		args []string
		want string
		code int
	}{
		{"unknown name", []string{"nosuch0"}, `no such file or interface "nosuch0"`, 1},
		{"directory", []string{t.TempDir()}, "is a directory", 1},
		{"text", []string{writeFile(t, []byte("hello, world, this is text"))},
			"neither pcap nor pcapng", 1},
		{"empty file", []string{writeFile(t, nil)}, "neither pcap nor pcapng", 1},
		{"start of a pcapng", []string{writeFile(t, ng)}, "cannot be read", 1},
		{"capture of 'any'", []string{writeFile(t, sll)}, "capture on one interface", 1},
		{"incomplete frame", []string{writeFile(t, good[:len(good)-5])},
			"ends in the middle of frame", 1},
		{"two arguments", []string{"a", "b"}, "one argument too many", 2},
		{"-w names the input", []string{"-w", saved, saved}, "choose another name", 2},
		{"-w to a missing directory", []string{"-w", "/nonexistent/x", saved}, "cannot write", 1},
	} {
		r := run(t, nil, c.args...)
		if r.err == nil || !strings.Contains(r.err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, r.err, c.want)
		}
		if got := cli.Status(r.err); got != c.code {
			t.Errorf("%s: exit status %d, want %d", c.name, got, c.code)
		}
	}
	for _, bad := range []string{"0", "-1", "x"} {
		if r := run(t, nil, "-c", bad, saved); r.err == nil {
			t.Errorf("-c %s succeeded, want an error", bad)
		}
	}
}

// A read error is not the end of the file. The packets before it are printed.
func TestReadFailure(t *testing.T) {
	plain := writePcap(t, bthtest.Frames(t, "rc_read.pcap"))
	broken := errors.New("the pipe broke")
	r := run(t, io.MultiReader(bytes.NewReader(plain), failing{broken}), "--json", "-")
	if !errors.Is(r.err, broken) || !strings.Contains(r.out, "RC RDMA READ Request") {
		t.Errorf("%v\n%s", r.err, r.out)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

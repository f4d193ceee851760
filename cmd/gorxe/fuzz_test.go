package main

import (
	"strings"
	"testing"

	"github.com/gorxe/gorxe/xdp/veth"
)

// gorxe up survives gorxe fuzz, which reports what it sent. A run with the same seed repeats it.
func TestFuzz(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	host := pair.A.IPv4.Addr().String()
	fuzz := []string{"fuzz", "-d", pair.B.Iface, "--target", host, "--yes", "--rate", "20000"}
	start(t, &pair.B, append(fuzz, "--check", "ping")...).wait().fails(1, "does not serve",
		"gorxe up")

	up := server(t, &pair.A, port, "up", pair.A.Iface)
	r := run(t, &pair.B, append(fuzz, "--count", "200", "--seed", "7", "--json")...).ok().json()[0]
	fields(t, r, "target", "interface", "datapath", "seed", "from", "cases", "skipped", "frames", "bytes",
		"frames_not_sent", "seconds", "connections", "connections_refused", "connections_ended",
		"checks", "last_good_check", "serving", "kinds", "answers")
	if r["cases"] != 200.0 || r["serving"] != true || r["checks"] != 2.0 || r["target"] != host ||
		r["frames"].(float64) < 200 || r["connections"].(float64) < 2 {
		t.Errorf("report: %v", r)
	}
	if n := len(r["answers"].([]any)); n < 2 {
		t.Errorf("%d kinds of answers: %v", n, r["answers"])
	}
	text := run(t, &pair.B, append(fuzz, "--only", "17", "--seed", "7", "--check", "ping")...).ok()
	for _, want := range []string{"1 case from 17 to " + host, "seed 7", "The host still serves",
		"2 checks"} {
		if !strings.Contains(text.stdout, want) {
			t.Errorf("want %q in the output:\n%s", want, text.stdout)
		}
	}
	// With perftest's protocol the fuzzer knows memory, so the host answers READs. Few cases are
	// valid READs, and a loaded host loses some of them with the PSNs in front. It may also refuse
	// a connection or two.
	r = run(t, &pair.B, append(fuzz, "--count", "1000", "--seed", "7", "--json", "--via",
		"perftest")...).ok().json()[0]
	read := false
	for _, a := range r["answers"].([]any) {
		read = read || a.(map[string]any)["name"] == "READ response"
	}
	opened, refused := r["connections"].(float64), r["connections_refused"].(float64)
	if !read || opened < 2 || refused > opened/4 {
		t.Errorf("report with --via perftest: %v", r)
	}
	up.cmd.Process.Kill()
	up.wait()
}

func TestFuzzUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--target h --yes":                      "choose it with -d",
		"-d a --yes":                            "--target",
		"-d a --target h":                       "confirm with --yes",
		"h":                                     "one argument too many",
		"-d a --target h --yes --only 3 -c 2":   "--only",
		"-d a --target h --yes --psn 3":         "--qpn",
		"-d a --target h --yes --rate 0":        "1 to",
		"-d a --target h --yes --qpn 0":         "1 to",
		"-d a --target h --yes --check none":    "rping",
		"-d a --target h --yes --skip anything": "VLAN tags",
	} {
		t.Run(args, func(t *testing.T) {
			run(t, nil, append([]string{"fuzz"}, strings.Fields(args)...)...).fails(2, want,
				"--help")
		})
	}
}

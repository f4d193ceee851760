package deploy_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// capabilities lists what opening an interface needs; see the documentation of package xdp.
var capabilities = []string{"NET_ADMIN", "NET_RAW", "BPF", "IPC_LOCK"}

// user is the user of the image.
const user = 65532

// Pods run without root, except the service, which becomes another user itself. The receiver and
// the service have the capabilities that they need, other pods have none.
func TestManifestPrivileges(t *testing.T) {
	for _, o := range manifests(t) {
		pod := o.pod()
		if pod == nil {
			continue
		}
		name, role := o.Metadata.Name, o.Metadata.Labels["role"]
		root := role == "service"
		if s := pod.SecurityContext; s.RunAsNonRoot == root || (s.RunAsUser == user) == root {
			t.Errorf("%s: securityContext %+v, want user %d", name, s, user)
		}
		var want []string
		switch role {
		case "receiver":
			want = capabilities
		case "service":
			want = append(slices.Clone(capabilities), "SETUID", "SETGID", "CHOWN")
		}
		for _, c := range pod.Containers {
			s := c.SecurityContext
			if !slices.Equal(s.Capabilities.Add, want) ||
				!slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
				t.Errorf("%s: capabilities %+v, want only %v", name, s.Capabilities, want)
			}
			// File capabilities may need the permission to gain privileges.
			if s.AllowPrivilegeEscalation == nil ||
				*s.AllowPrivilegeEscalation != (role == "receiver") || !s.ReadOnlyRootFilesystem ||
				s.SeccompProfile.Type != "RuntimeDefault" {
				t.Errorf("%s: securityContext %+v", name, s)
			}
		}
	}
}

// The services of the compose file have the same user and capabilities as the pods.
func TestComposePrivileges(t *testing.T) {
	text, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Services map[string]struct {
			User     string
			ReadOnly bool     `yaml:"read_only"`
			Add      []string `yaml:"cap_add"`
			Drop     []string `yaml:"cap_drop"`
			Options  []string `yaml:"security_opt"`
		}
	}
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&c); err != nil {
		t.Fatal(err)
	}
	for name, s := range c.Services {
		want, noNew := capabilities, false
		if strings.HasPrefix(name, "consumer") {
			want, noNew = nil, true
		}
		if s.User != "65532:65532" || !s.ReadOnly || !slices.Equal(s.Add, want) ||
			!slices.Equal(s.Drop, []string{"ALL"}) ||
			noNew != slices.Contains(s.Options, "no-new-privileges:true") {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// The image's binary has the capabilities as file capabilities that are permitted, not effective:
// the kernel refuses to run a binary with effective ones in a container that does not have them.
func TestContainerfilePrivileges(t *testing.T) {
	text, err := os.ReadFile("Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`setcap (\S+)=p /gorxe`).FindSubmatch(text)
	if m == nil {
		t.Fatal("Containerfile does not set permitted capabilities")
	}
	var have []string
	for _, c := range strings.Split(string(m[1]), ",") {
		have = append(have, strings.ToUpper(strings.TrimPrefix(c, "cap_")))
	}
	if !slices.Equal(have, capabilities) {
		t.Errorf("file capabilities %v, want %v", have, capabilities)
	}
	if !bytes.Contains(text, []byte("\nUSER 65532:65532\n")) {
		t.Error("the image runs as root")
	}
}

const unit = "gorxe@.service"

// The unit has the restrictions that the score of systemd-analyze depends on. Only some machines
// have that tool; see TestUnitScore.
func TestUnit(t *testing.T) {
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string][]string{}
	for _, line := range strings.Split(string(text), "\n") {
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			have[key] = append(have[key], value)
		}
	}
	const caps = "CAP_NET_ADMIN CAP_NET_RAW CAP_BPF"
	for key, want := range map[string]string{
		"AmbientCapabilities": caps, "CapabilityBoundingSet": caps,
		"LimitMEMLOCK": "infinity", "NoNewPrivileges": "yes", "ProtectSystem": "strict",
		"ProtectHome": "yes", "PrivateTmp": "yes", "PrivateDevices": "yes",
		"DevicePolicy": "closed", "ProtectProc": "invisible", "ProcSubset": "pid",
		"ProtectClock": "yes", "ProtectHostname": "yes", "ProtectKernelLogs": "yes",
		"ProtectKernelModules": "yes", "ProtectKernelTunables": "yes",
		"ProtectControlGroups":    "yes",
		"RestrictAddressFamilies": "AF_INET AF_INET6 AF_NETLINK AF_UNIX AF_XDP",
		"Type":                    "notify", "User": "gorxe", "RuntimeDirectory": "gorxe",
		"RuntimeDirectoryMode": "0755", "RuntimeDirectoryPreserve": "yes",
		"RestrictNamespaces": "yes", "RestrictRealtime": "yes", "RestrictSUIDSGID": "yes",
		"LockPersonality": "yes", "MemoryDenyWriteExecute": "yes", "UMask": "0077",
		"SystemCallArchitectures": "native",
	} {
		if got := have[key]; len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	// systemd makes a RuntimeDirectory that it preserves private if the user is dynamic. Then other
	// users cannot open the sockets.
	if v := have["DynamicUser"]; v != nil {
		t.Errorf("DynamicUser is %q, want a user that exists", v)
	}
	// What gorxe needs, also to restrict itself, is added after the groups that contain it.
	calls := have["SystemCallFilter"]
	for _, c := range []string{"bpf", "capset", "seccomp", "chown", "fchownat",
		"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"} {
		added := slices.IndexFunc(calls, func(s string) bool {
			return slices.Contains(strings.Fields(s), c)
		})
		removed := slices.IndexFunc(calls, func(s string) bool { return strings.HasPrefix(s, "~") })
		if removed < 0 || added < removed {
			t.Errorf("SystemCallFilter %q does not end with %s", calls, c)
		}
	}
}

// systemd-analyze rates the exposure of the unit below 3, on its scale from 0 to 10.
func TestUnitScore(t *testing.T) {
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	path, err := filepath.Abs(unit)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tool, "security", "--offline=true", "--no-pager", path).CombinedOutput()
	m := regexp.MustCompile(`exposure level for \S+: ([0-9.]+)`).FindSubmatch(out)
	if m == nil {
		t.Skipf("this systemd-analyze cannot rate a file: %v", err)
	}
	if score, err := strconv.ParseFloat(string(m[1]), 64); err != nil || score >= 3 {
		t.Errorf("exposure %s, want less than 3\n%s", m[1], out)
	}
}

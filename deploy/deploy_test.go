// Package deploy_test checks the manifests in this folder.
package deploy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// object has the fields of a Kubernetes object that the tests use.
type object struct {
	Kind     string
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Spec struct {
		Selector    struct{ MatchLabels map[string]string }
		PodSelector struct{ MatchLabels map[string]string }
		Template    struct {
			Metadata struct{ Labels map[string]string }
			Spec     podSpec
		}
		podSpec // of a Pod
	}
}

// podSpec describes a pod.
type podSpec struct {
	HostNetwork     bool
	SecurityContext struct {
		RunAsNonRoot bool
		RunAsUser    int
	}
	Containers []container
	Volumes    []struct {
		Name                  string
		PersistentVolumeClaim struct{ ClaimName string }
		HostPath              *struct{ Path string }
		EmptyDir              *struct{}
	}
}

// container describes a container of a pod.
type container struct {
	Name            string
	Image           string
	Args            []string
	SecurityContext struct {
		ReadOnlyRootFilesystem   bool
		AllowPrivilegeEscalation *bool
		SeccompProfile           struct{ Type string }
		Capabilities             struct{ Add, Drop []string }
	}
	ReadinessProbe struct{ Exec struct{ Command []string } }
	VolumeMounts   []struct {
		Name, MountPath, SubPath string
		ReadOnly                 bool
	}
}

// pod returns the description of an object's pods, nil if it has none.
func (o *object) pod() *podSpec {
	switch o.Kind {
	case "Deployment", "DaemonSet":
		return &o.Spec.Template.Spec
	case "Pod":
		return &o.Spec.podSpec
	}
	return nil
}

// The schemas.
const (
	kubernetes = "schema/kubernetes.json"
	compose    = "schema/compose.json"
)

func schema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// documents returns a YAML file's documents as JSON values.
func documents(t *testing.T, text []byte) (list []any) {
	t.Helper()
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc any
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		// The schema library needs its own types of numbers and maps.
		again, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		if doc, err = jsonschema.UnmarshalJSON(bytes.NewReader(again)); err != nil {
			t.Fatal(err)
		}
		list = append(list, doc)
	}
}

func manifests(t *testing.T) (list []object) {
	t.Helper()
	files, err := filepath.Glob("kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no manifests", err)
	}
	s := schema(t, kubernetes)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for i, doc := range documents(t, text) {
			if err := s.Validate(doc); err != nil {
				t.Errorf("%s, document %d: %v", f, i+1, err)
			}
			again, _ := json.Marshal(doc)
			var o object
			if err := json.Unmarshal(again, &o); err != nil {
				t.Fatal(err)
			}
			list = append(list, o)
		}
	}
	return list
}

// chosen reports whether all labels of a selector are among a pod's.
func chosen(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// Every object matches the schema, and every name that one uses of another exists.
func TestManifests(t *testing.T) {
	list := manifests(t)
	claims, receivers := map[string]bool{}, 0
	for _, o := range list {
		if o.Kind == "PersistentVolumeClaim" {
			claims[o.Metadata.Namespace+"/"+o.Metadata.Name] = true
		}
	}
	for _, o := range list {
		if o.Kind == "NetworkPolicy" &&
			!slices.ContainsFunc(list,
				func(d object) bool {
					return chosen(o.Spec.PodSelector.MatchLabels,
						d.Spec.Template.Metadata.Labels)
				}) {
			t.Errorf("%s: no pod has the labels %v", o.Metadata.Name,
				o.Spec.PodSelector.MatchLabels)
		}
		pod := o.pod()
		if pod == nil {
			continue
		}
		if fmt.Sprint(o.Spec.Selector.MatchLabels) != fmt.Sprint(o.Spec.Template.Metadata.Labels) {
			t.Errorf("%s: the selector does not choose its own pods", o.Metadata.Name)
		}
		volumes := map[string]bool{}
		for _, v := range pod.Volumes {
			volumes[v.Name] = true
			if v.HostPath == nil && v.EmptyDir == nil && !claims[o.Metadata.Namespace+"/"+v.PersistentVolumeClaim.ClaimName] {
				t.Errorf("%s: there is no claim %q", o.Metadata.Name,
					v.PersistentVolumeClaim.ClaimName)
			}
		}
		for _, c := range pod.Containers {
			for _, m := range c.VolumeMounts {
				if !volumes[m.Name] {
					t.Errorf("%s: there is no volume %q", o.Metadata.Name, m.Name)
				}
				if device := o.Metadata.Labels["device"]; device != "" && m.SubPath != "device-"+
					device {
					t.Errorf("%s of device %s mounts %q", o.Metadata.Name, device, m.SubPath)
				}
			}
		}
		if o.Metadata.Labels["role"] == "receiver" {
			receivers++
			if !pod.HostNetwork {
				t.Errorf("%s needs the node's network", o.Metadata.Name)
			}
		}
	}
	if receivers != 1 || len(list) < 4 {
		t.Errorf("%d receivers among %d objects", receivers, len(list))
	}
}

// The service and the program of the example use the same socket, in the same folder of the node.
func TestServiceManifests(t *testing.T) {
	const folder, socket = "/run/gorxe", "/run/gorxe/eth0.sock"
	found := map[string]container{}
	for _, o := range manifests(t) {
		role := o.Metadata.Labels["role"]
		if role != "service" && role != "program" {
			continue
		}
		pod := o.pod()
		c := pod.Containers[0]
		found[role] = c
		if v := pod.Volumes[0]; v.HostPath == nil || v.HostPath.Path != folder {
			t.Errorf("%s: volume %+v, want the folder %s of the node", role, v, folder)
		}
		if m := c.VolumeMounts[0]; m.MountPath != folder || m.ReadOnly != (role == "program") {
			t.Errorf("%s mounts %+v", role, m)
		}
		if !slices.Contains(c.Args, socket) {
			t.Errorf("%s: arguments %q, want %s", role, c.Args, socket)
		}
		if pod.HostNetwork != (role == "service") {
			t.Errorf("%s: hostNetwork is %v", role, pod.HostNetwork)
		}
	}
	if len(found) != 2 {
		t.Fatalf("found %v, want the service and a program", found)
	}
	if args := found["service"].Args; args[0] != "up" || args[1]+".sock" != filepath.Base(socket) {
		t.Errorf("the service's arguments are %q", args)
	}
	if probe := found["service"].ReadinessProbe.Exec.Command; !slices.Equal(probe,
		[]string{"/gorxe", "ps", "--socket", socket}) {
		t.Errorf("the service's readiness probe is %q", probe)
	}
	text, err := os.ReadFile("Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	target, _, _ := strings.Cut(strings.TrimPrefix(found["program"].Image, "gorxe-"), ":")
	if !bytes.Contains(text, []byte(" AS "+target+"\n")) {
		t.Errorf("Containerfile has no target %q", target)
	}
}

// The schemas reject what Kubernetes or compose would reject.
func TestSchemaRefuses(t *testing.T) {
	for _, c := range []struct {
		file, schema string
		wrong        [][2]string
	}{
		{"kubernetes/receiver.yaml", kubernetes, [][2]string{
			{"replicas: 1", "replicas: one"}, {"hostNetwork:", "hostnetwork:"},
			{"type: RuntimeDefault", "type: Default"},
			{"kind: Deployment", "kind: Deploymnet"}, {"mountPath: /data", "mountPath: data"},
			{"storage: 10Gi", "storage: 10GB"}, {"type: Recreate", "type: Replace"},
			{"          image: gorxe:latest\n", ""}, {"add: [NET_ADMIN", "add: [net_admin"},
			{"name: receiver\n  namespace", "name: Receiver\n  namespace"},
		}},
		{"kubernetes/consumers.yaml", kubernetes,
			[][2]string{{"[Ingress, Egress]", "[Ingres, Egress]"}, {"podSelector:", "selector:"}}},
		{"kubernetes/service.yaml", kubernetes, [][2]string{
			{"kind: DaemonSet", "kind: DaemonSets"}, {"type: RollingUpdate", "type: Recreate"},
			{"path: /run/gorxe", "path: run"}, {"DirectoryOrCreate", "DirectoryOrMake"},
			{"readinessProbe:", "readyProbe:"}, {"periodSeconds: 10", "periodSeconds: 10s"},
		}},
		{"kubernetes/pod.yaml", kubernetes, [][2]string{
			{"restartPolicy: Never", "restartPolicy: No"}, {"kind: Pod", "kind: Job"},
			{"apiVersion: v1", "apiVersion: apps/v1"}, {"readOnly: true", "readonly: true"},
		}},
		{"compose.yaml", compose, [][2]string{
			{"services:", "service:"}, {"    image: gorxe:latest\n", ""},
			{"command: [\"statusbyte\"", "comand: [\"statusbyte\""},
			{"network_mode: host", "network_mode: hots"},
			{"read_only: true", "read_only: yes please"},
			{"cap_add: [NET_ADMIN", "cap_add: [net-admin"}, {"- streams:/data", "- streams"},
			{"type: volume", "type: volumes"}, {"target: /stream", "target: stream"},
			{"subpath: device-000", "subPath: device-000"},
			{"subpath: device-000", "subpath: /device-000"},
			{"restart: unless-stopped", "restart: sometimes"},
			{"depends_on: [receiver]", "depends_on: receiver"},
		}},
	} {
		text, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		s := schema(t, c.schema)
		for _, w := range c.wrong {
			bad := strings.Replace(string(text), w[0], w[1], 1)
			if bad == string(text) {
				t.Fatalf("%s has no %q", c.file, w[0])
			}
			ok := true
			for _, doc := range documents(t, []byte(bad)) {
				ok = ok && s.Validate(doc) == nil
			}
			if ok {
				t.Errorf("%s: %q instead of %q passes", c.file, w[1], w[0])
			}
		}
	}
}

// The compose file matches its schema. Its services use the existing volume, each consumer its own
// device's part.
func TestCompose(t *testing.T) {
	text, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range documents(t, text) {
		if err := schema(t, compose).Validate(doc); err != nil {
			t.Error(err)
		}
	}
	var c struct {
		Services map[string]struct {
			Image   string
			Command []string
			Volumes []any
		}
		Volumes map[string]any
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&c); err != nil {
		t.Fatal(err)
	}
	consumer := regexp.MustCompile(`^consumer-(\d{3})$`)
	for name, s := range c.Services {
		if s.Image == "" || len(s.Command) == 0 || s.Command[0] != "statusbyte" ||
			len(s.Volumes) != 1 {
			t.Errorf("%s: %+v", name, s)
		}
		volume := fmt.Sprint(s.Volumes[0])
		if m := consumer.FindStringSubmatch(name); m != nil &&
			!strings.Contains(volume, "device-"+m[1]) {
			t.Errorf("%s has %s", name, volume)
		}
		if !strings.Contains(volume, "streams") {
			t.Errorf("%s has %s", name, volume)
		}
	}
	if _, ok := c.Volumes["streams"]; !ok || len(c.Services) < 3 {
		t.Errorf("%+v", c)
	}
}

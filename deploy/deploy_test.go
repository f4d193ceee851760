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
			Spec     struct {
				HostNetwork     bool
				SecurityContext struct {
					RunAsNonRoot bool
					RunAsUser    int
				}
				Containers []struct {
					Name            string
					Args            []string
					SecurityContext struct {
						ReadOnlyRootFilesystem   bool
						AllowPrivilegeEscalation *bool
						SeccompProfile           struct{ Type string }
						Capabilities             struct{ Add, Drop []string }
					}
					VolumeMounts []struct{ Name, MountPath, SubPath string }
				}
				Volumes []struct {
					Name                  string
					PersistentVolumeClaim struct{ ClaimName string }
				}
			}
		}
	}
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
		if o.Kind != "Deployment" {
			continue
		}
		if fmt.Sprint(o.Spec.Selector.MatchLabels) != fmt.Sprint(o.Spec.Template.Metadata.Labels) {
			t.Errorf("%s: the selector does not choose its own pods", o.Metadata.Name)
		}
		pod := o.Spec.Template.Spec
		volumes := map[string]bool{}
		for _, v := range pod.Volumes {
			volumes[v.Name] = true
			if !claims[o.Metadata.Namespace+"/"+v.PersistentVolumeClaim.ClaimName] {
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

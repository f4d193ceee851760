// Package deploy_test checks the manifests of this folder.
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
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// object is what the tests look at of a Kubernetes object.
type object struct {
	Kind     string
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Spec struct {
		Selector struct{ MatchLabels map[string]string }
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				HostNetwork bool
				Containers  []struct {
					Name         string
					Args         []string
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

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile("schema/kubernetes.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("kubernetes.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("kubernetes.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// documents are a YAML file's documents, as JSON would have them.
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
		// Numbers and maps the way that the schema's library knows them.
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
	s := schema(t)
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

// Every object keeps to the schema, and every name that one uses of another is there.
func TestManifests(t *testing.T) {
	list := manifests(t)
	claims, receivers := map[string]bool{}, 0
	for _, o := range list {
		if o.Kind == "PersistentVolumeClaim" {
			claims[o.Metadata.Namespace+"/"+o.Metadata.Name] = true
		}
	}
	for _, o := range list {
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
				t.Errorf("%s: there is no claim %q", o.Metadata.Name, v.PersistentVolumeClaim.ClaimName)
			}
		}
		for _, c := range pod.Containers {
			for _, m := range c.VolumeMounts {
				if !volumes[m.Name] {
					t.Errorf("%s: there is no volume %q", o.Metadata.Name, m.Name)
				}
				if device := o.Metadata.Labels["device"]; device != "" && m.SubPath != "device-"+device {
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

// The schema is worth something: what Kubernetes would refuse, it refuses.
func TestSchemaRefuses(t *testing.T) {
	text, err := os.ReadFile("kubernetes/receiver.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := schema(t)
	for _, c := range [][2]string{
		{"replicas: 1", "replicas: one"}, {"hostNetwork:", "hostnetwork:"}, {"kind: Deployment", "kind: Deploymnet"}, {"mountPath: /data", "mountPath: data"},
		{"storage: 10Gi", "storage: 10GB"}, {"type: Recreate", "type: Replace"}, {"          image: gorxe:latest\n", ""}, {"add: [NET_ADMIN", "add: [net_admin"},
		{"name: receiver\n  namespace", "name: Receiver\n  namespace"},
	} {
		bad := strings.Replace(string(text), c[0], c[1], 1)
		if bad == string(text) {
			t.Fatalf("the manifest has no %q", c[0])
		}
		ok := true
		for _, doc := range documents(t, []byte(bad)) {
			ok = ok && s.Validate(doc) == nil
		}
		if ok {
			t.Errorf("%q instead of %q passes", c[1], c[0])
		}
	}
}

// The compose file's services use the volume that it has, each consumer its own device's part.
func TestCompose(t *testing.T) {
	text, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
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
		if s.Image == "" || len(s.Command) == 0 || s.Command[0] != "statusbyte" || len(s.Volumes) != 1 {
			t.Errorf("%s: %+v", name, s)
		}
		volume := fmt.Sprint(s.Volumes[0])
		if m := consumer.FindStringSubmatch(name); m != nil && !strings.Contains(volume, "device-"+m[1]) {
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

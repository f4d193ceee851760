package roce

import (
	"os"
	"reflect"
	"regexp"
	"testing"
)

// TestDocumentedFields checks that types.go lists all fields of the aliased structs.
func TestDocumentedFields(t *testing.T) {
	text, err := os.ReadFile("types.go")
	must(t, err)
	for _, typ := range []reflect.Type{
		reflect.TypeFor[SendWR](), reflect.TypeFor[RecvWR](), reflect.TypeFor[SGE](),
		reflect.TypeFor[WC](), reflect.TypeFor[Attr](),
	} {
		comment := regexp.MustCompile(`(?s)// ` + typ.Name() + ` .*?\s` + typ.Name() +
			` = `).Find(text)
		for i := range typ.NumField() {
			name := typ.Field(i).Name
			if !regexp.MustCompile(`//\t(\w+, )?` + name + `\b`).Match(comment) {
				t.Errorf("types.go does not list %s.%s", typ.Name(), name)
			}
		}
	}
}

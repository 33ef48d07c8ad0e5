package yamlfile_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/yamlfile"
)

// TestTypesAreStrict reads one field of each kind from values of every type.
func TestTypesAreStrict(t *testing.T) {
	kinds := map[string]func(*yamlfile.Form){
		"text":    func(f *yamlfile.Form) { f.Text("x", new(string)) },
		"name":    func(f *yamlfile.Form) { f.Ident("x", new(string)) },
		"device":  func(f *yamlfile.Form) { f.IdentOrIndex("x", new(string)) },
		"integer": func(f *yamlfile.Form) { f.Integer("x", -1000, 1000) },
		"boolean": func(f *yamlfile.Form) { f.Boolean("x", new(bool)) },
	}
	for value, accepted := range map[string]string{
		"abc":         "text name device",
		`"12"`:        "text name device",
		"'true'":      "text name device",
		"12":          "integer device",
		"-12":         "integer",
		"1_000":       "integer device",
		"0x1F":        "",
		"1.5":         "",
		"1e3":         "",
		"-1e999":      "",
		".inf":        "",
		"true":        "boolean",
		"True":        "",
		"yes":         "text name device",
		"2024-01-01":  "",
		"~":           "",
		"null":        "",
		"!!str 12":    "text name device",
		"!!int '12'":  "",
		"!!binary aa": "",
		"!unknown a":  "",
		"[a]":         "",
		"{a: 1}":      "",
	} {
		for kind, read := range kinds {
			f, err := yamlfile.Read("x.yaml", "test", []byte("x: "+value+"\n"), 1000)
			if err != nil {
				t.Fatalf("%s: %v", value, err)
			}
			read(f)
			err = f.Err()
			want := strings.Contains(" "+accepted+" ", " "+kind+" ")
			if (err == nil) != want {
				t.Errorf("%s as %s: got error %v, want accepted: %v", value, kind, err, want)
			}
			if err != nil && !strings.HasPrefix(err.Error(), "x.yaml:1: x: ") {
				t.Errorf("%s as %s: got %q, want the file, the line and the field", value, kind, err)
			}
			if !errors.As(err, new(yamlfile.Errors)) && err != nil {
				t.Errorf("%s as %s: got an error of type %T", value, kind, err)
			}
		}
	}
}

// Package yamlfile reads YAML files field by field and reports mistakes with the
// file, the line, the field, what is allowed, and what was perhaps meant. It reports
// several mistakes at a time.
//
// Types are checked: a number, a boolean or a date is not accepted as a text unless
// it is quoted, and a quoted number is not accepted as a number.
//
// No file can make the package use much time or memory: files, values and lists are
// bounded, and aliases are followed but not expanded.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ReadFile reads a regular file of at most most bytes. It returns an error for a
// pipe or a device, which might never end.
func ReadFile(path string, most int64) ([]byte, error) {
	data, err := readPlain(path, most)
	var wrapped *os.PathError
	if errors.As(err, &wrapped) {
		err = wrapped.Err // without the name of the system call
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}

func readPlain(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a plain file")
	case info.Size() > most:
		return nil, fmt.Errorf("larger than %d MiB", most>>20)
	}
	return os.ReadFile(path)
}

// document is a file that is being read, and its mistakes.
type document struct {
	file  string
	errs  Errors
	nodes int
}

// maxNodes bounds how many values of a file are read. A value counts as often as
// aliases refer to it.
const maxNodes = 1_000_000

// Read parses a file with one document and returns its fields, nil if the file is
// empty. file is the name in errors, and what is the kind of document.
func Read(file, what string, data []byte, most int) (*Form, error) {
	if len(data) > most {
		return nil, Errors{{file, 0, "", fmt.Sprintf("larger than %d MiB", most>>20)}}
	}
	var doc, rest yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(&rest); !errors.Is(err, io.EOF) {
		return nil, Errors{{file, rest.Line, "", "the file has a second document; want one " + what + " per file"}}
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 || doc.Content[0].Tag == "!!null" {
		return nil, nil
	}
	d := &document{file: file}
	return d.form(doc.Content[0], ""), nil
}

// full reports whether reading on has no use: there are too many mistakes or values.
func (d *document) full() bool { return len(d.errs) >= maxErrors || d.nodes > maxNodes }

// wrong records a mistake at n.
func (d *document) wrong(n *yaml.Node, field, format string, args ...any) {
	if !d.full() {
		d.errs = append(d.errs, Error{d.file, n.Line, field, fmt.Sprintf(format, args...)})
	}
}

// follow follows aliases from n. It does not expand what the alias refers to, so a
// small file stays small.
func (d *document) follow(n *yaml.Node, field string) *yaml.Node {
	if d.nodes == maxNodes {
		d.wrong(n, field, "the file has more than %d values, with each counted as often as an alias refers to it", maxNodes)
	}
	d.nodes++
	for i := 0; n.Kind == yaml.AliasNode && i < 100; i++ {
		n = n.Alias
	}
	return n
}

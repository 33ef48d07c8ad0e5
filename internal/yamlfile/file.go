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

// Read parses a file with one document and returns its root, nil if the file is
// empty. file is the name in errors, and what is the kind of document.
func Read(file, what string, data []byte, most int) (*Reader, *yaml.Node, error) {
	if len(data) > most {
		return nil, nil, Errors{{file, 0, "", fmt.Sprintf("larger than %d MiB", most>>20)}}
	}
	r := &Reader{file: file}
	var doc, rest yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return r, nil, nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(&rest); !errors.Is(err, io.EOF) {
		return nil, nil, Errors{{file, rest.Line, "", "the file has a second document; want one " + what + " per file"}}
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return r, nil, nil
	}
	return r, doc.Content[0], nil
}

// Err returns the mistakes in the order of the file, or nil.
func (r *Reader) Err() error {
	if len(r.errs) == 0 {
		return nil
	}
	sortErrors(r.errs)
	return r.errs
}

// Mistakes returns the number of mistakes so far.
func (r *Reader) Mistakes() int { return len(r.errs) }

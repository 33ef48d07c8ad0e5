// Package yamlfile reads YAML files that people write, field by field, and says
// what is wrong with them: the file, the line, the field, what is allowed there
// and what was perhaps meant, several mistakes at a time.
//
// It knows nothing of what the fields mean. Nothing in a file can make it use
// much time or memory: files, values and lists are bounded, and aliases are
// followed, never expanded.
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

// ReadFile reads a file of bounded size. It refuses what is not a plain file,
// so that nobody waits for a pipe or reads a device for ever.
func ReadFile(path string, most int64) ([]byte, error) {
	data, err := readPlain(path, most)
	var wrapped *os.PathError
	if errors.As(err, &wrapped) {
		err = wrapped.Err // which call it was is nobody's concern
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

// Read parses the one document of a file, and returns its root: nil if there is
// nothing in it. file is its name in errors, what its kind.
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
		return nil, nil, Errors{{file, rest.Line, "", "one " + what + " a file: there is a second document"}}
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return r, nil, nil
	}
	return r, doc.Content[0], nil
}

// Err returns what was found wrong, in the order of the file, or nil.
func (r *Reader) Err() error {
	if len(r.errs) == 0 {
		return nil
	}
	sortErrors(r.errs)
	return r.errs
}

// Mistakes is how many mistakes were found so far.
func (r *Reader) Mistakes() int { return len(r.errs) }

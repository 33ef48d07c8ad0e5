package cli

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/giveway/giveway/internal/format"
)

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// outputFile is a file that a command writes besides its text. Without a path nothing is
// written.
type outputFile struct{ path, what string }

// check returns an error if the file cannot be written, and changes nothing. A command
// may take minutes, so it calls check first. Pipes and devices are not tried: opening one
// may have an effect.
func (f *outputFile) check() error {
	if f.path == "" {
		return nil
	}
	if err := canWrite(f.path); err != nil {
		return fmt.Errorf("write the %s: %w", f.what, err)
	}
	return nil
}

func canWrite(path string) error {
	info, err := os.Stat(path)
	isNew, flags := errors.Is(err, fs.ErrNotExist), os.O_WRONLY
	switch {
	case isNew:
		flags |= os.O_CREATE | os.O_EXCL
	case err != nil:
		return err
	case !info.Mode().IsRegular() && !info.IsDir():
		return nil
	}
	file, err := os.OpenFile(path, flags, 0o666)
	switch {
	case isNew && errors.Is(err, fs.ErrExist):
		return nil // a symbolic link whose target does not exist yet
	case err != nil:
		return err
	case isNew:
		return errors.Join(file.Close(), os.Remove(path))
	}
	return file.Close()
}

// countingWriter counts what is written.
type countingWriter struct {
	w     io.Writer
	bytes int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.bytes += int64(n)
	return n, err
}

// write writes the file and prints its path and size to w.
func (f *outputFile) write(w io.Writer, content func(io.Writer) error) error {
	if f.path == "" {
		return nil
	}
	file, err := os.Create(f.path)
	size := int64(0)
	if err == nil {
		count := &countingWriter{w: file}
		b := bufio.NewWriter(count)
		err = cmp.Or(content(b), b.Flush(), file.Close()) // Flush repeats an error of content
		size = count.bytes
	}
	if err != nil {
		return fmt.Errorf("write the %s: %w", f.what, err)
	}
	_, err = fmt.Fprintf(w, "The %s is in %s (%s).\n", f.what, f.path, format.Bytes(size))
	return err
}

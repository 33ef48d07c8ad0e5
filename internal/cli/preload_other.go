//go:build !linux

package cli

import (
	"errors"
	"io/fs"
)

func onlyOurs(fs.FileInfo) bool { return false }

func mayLoadFrom(string) error { return errors.New("there is no shim for this system") }

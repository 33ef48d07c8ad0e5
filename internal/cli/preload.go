package cli

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/giveway/giveway/client"
)

// preload returns env with the library, kept in one of dirs, in front of what is
// preloaded anyway. With an error it is env as it was.
//
// The library is put into a file that stays: the program's children load it by its
// name long after us.
func preload(env []string, library func() ([]byte, error), dirs []string) ([]string, error) {
	const name = "LD_PRELOAD="
	data, err := library()
	if err != nil {
		return env, err
	}
	path, err := extract(data, dirs)
	if err != nil {
		return env, fmt.Errorf("put the shim somewhere: %w", err)
	}
	var out []string
	line := name + path
	for _, e := range env {
		if old, ok := strings.CutPrefix(e, name); !ok {
			out = append(out, e)
		} else if others := without(old, path); others != "" {
			line += ":" + others
		}
	}
	return append(out, line), nil
}

// without is a list of libraries without one of them.
func without(list, path string) string {
	all := strings.FieldsFunc(list, func(c rune) bool { return c == ':' || c == ' ' })
	var others []string
	for _, one := range all {
		if one != path {
			others = append(others, one)
		}
	}
	return strings.Join(others, ":")
}

// preloadDirs are the places to keep the library, the best first. What root runs may
// become somebody else, so root's is nothing that only root can read.
func preloadDirs() (dirs []string) {
	if os.Geteuid() == 0 {
		dirs = append(dirs, filepath.Dir(client.SystemSocket), "/var/lib/giveway")
	} else {
		if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
			dirs = append(dirs, filepath.Join(dir, "giveway"))
		}
		if dir, err := os.UserCacheDir(); err == nil && filepath.IsAbs(dir) {
			dirs = append(dirs, filepath.Join(dir, "giveway"))
		}
	}
	return append(dirs, filepath.Join(os.TempDir(), fmt.Sprintf("giveway-%d", os.Geteuid())))
}

// extract puts the library into the first of those places where it can be loaded
// from and nobody else can change it.
func extract(data []byte, dirs []string) (string, error) {
	var whys []string
	for _, dir := range dirs {
		path, err := extractTo(data, dir)
		if err == nil {
			return path, nil
		}
		whys = append(whys, err.Error())
	}
	return "", fmt.Errorf("no place is good (%s)", strings.Join(whys, "; ")) // one line: a warning
}

func extractTo(data []byte, dir string) (string, error) {
	path := filepath.Join(dir, fmt.Sprintf("libgiveway-%x.so", sha256.Sum256(data)))
	if strings.ContainsAny(path, ": $") {
		return "", fmt.Errorf("%s: the loader would take it for several", path)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() || !onlyOurs(info) {
		return "", fmt.Errorf("%s is not a folder that only we may change", dir)
	}
	if err := mayLoadFrom(dir); err != nil {
		return "", err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && onlyOurs(info) {
		if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, data) {
			return path, nil
		}
	}
	return path, replaceFile(path, data)
}

// replaceFile puts a file in its place as a whole, whatever is there.
func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".libgiveway-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o755), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // it is in nobody's way
	}
	return err
}

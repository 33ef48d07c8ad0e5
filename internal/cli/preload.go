package cli

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/giveway/giveway/client"
	"golang.org/x/sys/unix"
)

// preload returns env with the shim, in a file in one of dirs, in front of the other
// preloaded libraries. On an error it returns env unchanged.
//
// The file stays: descendants of the program load it by its name after this process has
// exited.
func preload(env []string, library func() ([]byte, error), dirs []string) ([]string, error) {
	const name = "LD_PRELOAD="
	data, err := library()
	if err != nil {
		return env, err
	}
	path, err := extract(data, dirs)
	if err != nil {
		return env, fmt.Errorf("write the shim to a file: %w", err)
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

// without returns a list of libraries without one of them.
func without(list, path string) string {
	all := strings.FieldsFunc(list, func(c rune) bool { return c == ':' || c == ' ' })
	return strings.Join(slices.DeleteFunc(all, func(library string) bool { return library == path }), ":")
}

// preloadDirs lists the folders for the shim, the best first. A program that root starts
// may change its user, so root's folders are readable by all users.
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

// extract writes the shim to the first folder from which libraries can be loaded and
// which no other user can change.
func extract(data []byte, dirs []string) (string, error) {
	var whys []string
	for _, dir := range dirs {
		path, err := extractTo(data, dir)
		if err == nil {
			return path, nil
		}
		whys = append(whys, err.Error())
	}
	return "", fmt.Errorf("no folder can be used (%s)", strings.Join(whys, "; ")) // in one line, as it is printed as a warning
}

func extractTo(data []byte, dir string) (string, error) {
	path := filepath.Join(dir, fmt.Sprintf("libgiveway-%x.so", sha256.Sum256(data)))
	if strings.ContainsAny(path, ": $") {
		return "", fmt.Errorf("%s: LD_PRELOAD cannot hold a path with these characters", path)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() || !ownedByUs(info) {
		return "", fmt.Errorf("%s is not a folder that only its owner may change", dir)
	}
	if err := mayLoadFrom(dir); err != nil {
		return "", err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && ownedByUs(info) {
		if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, data) {
			return path, nil
		}
	}
	return path, replaceFile(path, data)
}

// replaceFile writes a file and moves it into place, so that no reader sees a part of it.
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
		_ = os.Remove(f.Name()) // a leftover does no harm
	}
	return err
}

// ownedByUs reports whether only this process's user, and root, can change a file.
func ownedByUs(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == uint32(os.Geteuid()) && info.Mode().Perm()&0o022 == 0
}

// mayLoadFrom returns an error if no library can be loaded from a folder.
func mayLoadFrom(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("read the mount flags of %s: %w", dir, err)
	}
	if st.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s is mounted noexec", dir)
	}
	return nil
}

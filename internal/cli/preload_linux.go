package cli

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ownedByUs reports whether only this process's user, and root, can change a file.
func ownedByUs(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == uint32(os.Geteuid()) && info.Mode().Perm()&0o022 == 0
}

// mayLoadFrom returns an error if no library can be loaded from a folder.
func mayLoadFrom(dir string) error {
	const noExec = 8 // ST_NOEXEC, from statfs(2)
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return fmt.Errorf("read the mount flags of %s: %w", dir, err)
	}
	if st.Flags&noExec != 0 {
		return fmt.Errorf("%s is mounted noexec", dir)
	}
	return nil
}

package discover

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/giveway/giveway/internal/proc"
)

// procfs is a mounted procfs.
type procfs struct{ proc.FS }

// Limits on the descriptors of one process.
const (
	maxOpen     = 64 << 10 // all
	maxControls = 64       // of the control device
)

// isMPSServer reports whether a process is the MPS server. It looks at the executable: the
// kernel cuts the name to 15 letters, which the server and the control daemon have in common.
func (p procfs) isMPSServer(pid int) bool {
	exe, err := os.Readlink(p.Path(pid, "exe"))
	return err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == "nvidia-cuda-mps-server"
}

// controls returns the descriptors of a process whose links name the control device, lowest
// first. A link is a path in the process's own mount namespace, so the caller must check
// the descriptor itself.
func (p procfs) controls(pid int, control string) ([]int, error) {
	d, err := os.Open(p.Path(pid, "fd"))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var found []int
	for read := 0; read < maxOpen; {
		names, err := d.Readdirnames(1024)
		read += len(names)
		for _, fd := range proc.Numbers(names) {
			if p.isControl(pid, fd, control) {
				found = append(found, fd)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(found)
	return found[:min(len(found), maxControls)], nil
}

func (p procfs) isControl(pid, fd int, control string) bool {
	link, err := os.Readlink(p.Path(pid, "fd/"+strconv.Itoa(fd)))
	link = strings.TrimSuffix(link, " (deleted)")
	return err == nil && (link == control || strings.HasSuffix(link, "/nvidiactl"))
}

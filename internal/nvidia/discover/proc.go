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

// procfs is the directory where procfs is mounted.
type procfs struct{ proc.FS }

// Limits on what is read.
const (
	maxOpen     = 64 << 10 // descriptors of one process
	maxControls = 64       // descriptors of the control device, of one process
)

// isMPSServer goes by the program, not by the name, which the kernel cuts to 15
// letters: the same 15 as the control daemon's.
func (p procfs) isMPSServer(pid int) bool {
	exe, err := os.Readlink(p.Path(pid, "exe"))
	return err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == "nvidia-cuda-mps-server"
}

// controls returns the descriptors of a process that claim to be of the control
// device, lowest first. The text of a link is of the process's own mount
// namespace, so it is a reason to look closer and no more.
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

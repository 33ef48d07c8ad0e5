package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// settings are the kernel's settings that the kubelet writes, under /proc/sys. No namespace
// has its own.
var settings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// mountStep is one mount.
type mountStep struct {
	source, target, kind, options string
	flags                         uintptr
}

// setUpMounts gives the mount namespace its own copies of what the node's programs change. out
// is the folder of the run's logs and state.
func setUpMounts(out string) error {
	run := filepath.Join(out, "run")
	if err := os.RemoveAll(run); err != nil {
		return err
	}
	state := filepath.Join(run, "state")
	steps := []mountStep{
		{"", "/", "", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"tmpfs", state, "tmpfs", "size=4g", 0},
	}
	for _, dir := range []string{"var", "etc", "opt"} {
		upper, work := filepath.Join(state, dir+".upper"), filepath.Join(state, dir+".work")
		steps = append(steps, mountStep{"overlay", "/" + dir, "overlay", "lowerdir=/" + dir + ",upperdir=" + upper + ",workdir=" + work, 0})
	}
	steps = append(
		steps,
		mountStep{"tmpfs", "/run", "tmpfs", "", 0},
		mountStep{"tmpfs", "/var/lib/kubelet", "tmpfs", "", 0},
		mountStep{"", "/var/lib/kubelet", "", "", unix.MS_SHARED}, // volumes that are mounted later reach the pods
		mountStep{"tmpfs", "/var/lib/containerd", "tmpfs", "", 0},
	)
	for _, s := range steps {
		if err := s.do(); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte(nodeName)); err != nil {
		return fmt.Errorf("set the node's name: %w", err)
	}
	return shadowSettings(state)
}

func (s mountStep) do() error {
	folders := []string{s.target}
	for option := range strings.SplitSeq(s.options, ",") {
		if key, dir, _ := strings.Cut(option, "="); key == "upperdir" || key == "workdir" {
			folders = append(folders, dir)
		}
	}
	for _, dir := range folders {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(s.source, s.target, s.kind, s.flags, s.options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", s.kind, s.target, err)
	}
	return nil
}

// shadowSettings puts a file in the place of each setting that the kubelet writes.
func shadowSettings(state string) error {
	for _, name := range settings {
		setting := filepath.Join("/proc/sys", name)
		value, err := os.ReadFile(setting)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		file := filepath.Join(state, "setting."+filepath.Base(name))
		if err := os.WriteFile(file, value, 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, setting, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount a file on %s: %w", setting, err)
		}
	}
	return nil
}

package pool

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// gpusFolder has a folder for each GPU, in which the driver describes it. deviceFiles has
// their device files. Tests set them.
var (
	gpusFolder  = "/proc/driver/nvidia/gpus"
	deviceFiles = "/dev"
)

// gpu is a GPU as the driver describes it.
type gpu struct {
	bus, model, uuid string
	hidden           bool // this process cannot open its device file
}

// visibleGPUs returns the GPUs that a program may use, in its order, as they would be in
// CUDA_VISIBLE_DEVICES: by UUID if possible. An index means another GPU to the client of a
// server that does not see all GPUs, and the same GPU if the program is not a client after
// all; a UUID means the same GPU everywhere. Indices stay where the driver's order of GPUs
// is not known. given is false if the program may use all.
func visibleGPUs(env []string, gpus []gpu) (names []string, given bool) {
	visible, given := lookup(env, devicesEnv)
	order, _ := lookup(env, orderEnv)
	// Without PCI_BUS_ID the fastest GPU is first; equal ones are in the order of the bus.
	ordered := order == "PCI_BUS_ID" || !slices.ContainsFunc(gpus, func(g gpu) bool { return g.model != gpus[0].model })
	for name := range strings.FieldsFuncSeq(visible, func(c rune) bool { return c == ',' || c == ' ' }) {
		i, err := strconv.Atoi(name)
		if err == nil && ordered && i >= 0 && i < len(gpus) {
			name = gpus[i].uuid
		} else if err != nil {
			name = fullUUID(name, gpus)
		}
		names = append(names, name)
	}
	return names, given
}

// fullUUID returns the UUID that begins with name, or name if there is not exactly one.
func fullUUID(name string, gpus []gpu) string {
	full := name
	for _, g := range gpus {
		if !strings.HasPrefix(g.uuid, name) {
			continue
		}
		if full != name {
			return name
		}
		full = g.uuid
	}
	return full
}

// errUnknownGPUs means that two sets of GPUs cannot be told apart: where GPUs are hidden, the
// same index is another GPU to another program.
var errUnknownGPUs = errors.New("some GPUs are hidden from the program, and it is not known which it may use; set CUDA_VISIBLE_DEVICES to their UUIDs")

// gpuSet returns the set of GPUs that a program may use, the same for each order and
// spelling; empty: all. If it has indices, the server sees all GPUs.
func gpuSet(env []string) (string, error) {
	gpus, all := readGPUs()
	names, given := visibleGPUs(env, gpus)
	if !given && !all {
		for _, g := range gpus {
			names = append(names, g.uuid)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	other := func(g gpu) bool { return !slices.Contains(names, g.uuid) }
	if all && len(names) == len(gpus) && !slices.ContainsFunc(gpus, other) {
		return "", nil
	}
	set := strings.Join(names, ",")
	if !all && (hasIndices(set) || !given && len(gpus) == 0) {
		return "", errUnknownGPUs
	}
	return set, nil
}

// hasIndices reports whether a set of GPUs names some by index.
func hasIndices(set string) bool {
	return slices.ContainsFunc(strings.Split(set, ","), func(name string) bool {
		_, err := strconv.Atoi(name)
		return err == nil
	})
}

// readGPUs returns the GPUs that this process can open, in the order of the PCI bus, and
// whether these are all; none if they cannot be read. The control group of a job or a container
// may hide GPUs, which CUDA then does not count; the driver describes them all the same.
func readGPUs() (gpus []gpu, all bool) {
	paths, _ := filepath.Glob(filepath.Join(gpusFolder, "*", "information"))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, true
		}
		g := gpu{bus: filepath.Base(filepath.Dir(path))}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
			case "Model":
				g.model = value
			case "GPU UUID":
				g.uuid = value
			case "Device Minor":
				g.hidden = unix.Access(filepath.Join(deviceFiles, "nvidia"+value), unix.R_OK|unix.W_OK) != nil
			}
		}
		gpus = append(gpus, g)
	}
	hidden := func(g gpu) bool { return g.hidden }
	all = !slices.ContainsFunc(gpus, hidden)
	if slices.ContainsFunc(gpus, func(g gpu) bool { return !g.hidden }) {
		gpus = slices.DeleteFunc(gpus, hidden)
	} else {
		all = true // the first CUDA program makes the device files
	}
	notInitialised := func(g gpu) bool { return !strings.HasPrefix(g.uuid, "GPU-") || strings.Contains(g.uuid, "?") }
	if slices.ContainsFunc(gpus, notInitialised) {
		return nil, all
	}
	slices.SortFunc(gpus, func(a, b gpu) int { return strings.Compare(a.bus, b.bus) })
	return gpus, all
}

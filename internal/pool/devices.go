package pool

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// gpusFolder has a folder for each GPU, in which the driver describes it. Tests set it.
var gpusFolder = "/proc/driver/nvidia/gpus"

// gpu is a GPU as the driver describes it.
type gpu struct{ bus, model, uuid string }

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

// gpuSet returns the set of GPUs that a program may use, the same for each order and
// spelling; empty: all. If it has indices, the server sees all GPUs.
func gpuSet(env []string) string {
	gpus := readGPUs()
	names, _ := visibleGPUs(env, gpus)
	slices.Sort(names)
	names = slices.Compact(names)
	other := func(g gpu) bool { return !slices.Contains(names, g.uuid) }
	if len(names) == len(gpus) && !slices.ContainsFunc(gpus, other) {
		return ""
	}
	return strings.Join(names, ",")
}

// hasIndices reports whether a set of GPUs names some by index.
func hasIndices(set string) bool {
	return slices.ContainsFunc(strings.Split(set, ","), func(name string) bool {
		_, err := strconv.Atoi(name)
		return err == nil
	})
}

// readGPUs returns the GPUs in the order of the PCI bus; none if they cannot be read.
func readGPUs() (gpus []gpu) {
	paths, _ := filepath.Glob(filepath.Join(gpusFolder, "*", "information"))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		g := gpu{bus: filepath.Base(filepath.Dir(path))}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
			case "Model":
				g.model = value
			case "GPU UUID":
				g.uuid = value
			}
		}
		if !strings.HasPrefix(g.uuid, "GPU-") || strings.Contains(g.uuid, "?") { // not initialised yet
			return nil
		}
		gpus = append(gpus, g)
	}
	slices.SortFunc(gpus, func(a, b gpu) int { return strings.Compare(a.bus, b.bus) })
	return gpus
}

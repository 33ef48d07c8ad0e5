package cli

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/giveway/giveway/internal/amd/lab/hqd"
	"github.com/giveway/giveway/internal/format"
)

// hqdFile is the path of the kernel's dump. Tests change it.
var hqdFile = hqd.File

// doctorHQDs prints the hardware slots of the AMD GPUs.
func doctorHQDs(out, warnings io.Writer, file string, asJSON bool) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open the dump of hardware slots (needs root, debugfs mounted, and AMD's driver loaded): %w", err)
	}
	defer f.Close()
	if _, err := fmt.Fprintln(warnings, "Reading the slots stalls all work on the GPUs for a moment."); err != nil {
		return err
	}
	const maxBytes = 64 << 20
	slots, err := hqd.Parse(io.LimitReader(f, maxBytes))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if asJSON {
		if slots == nil {
			slots = []hqd.Slot{}
		}
		return writeJSON(out, slots)
	}
	return printHQDs(out, slots)
}

func printHQDs(w io.Writer, slots []hqd.Slot) error {
	if len(slots) == 0 {
		_, err := fmt.Fprintln(w, "The dump has no slots: this machine has no AMD GPU, or all of them are stopped.")
		return err
	}
	var t format.Table
	t.Add("GPU", "XCC", "PIPE", "QUEUE", "STATE", "VMID", "PRIORITY", "RING")
	active, unknown := 0, 0
	for _, s := range slots {
		cells := []string{fmt.Sprint(s.GPU), fmt.Sprint(s.XCC), fmt.Sprint(s.Pipe), fmt.Sprint(s.Queue)}
		switch {
		case !s.Known:
			unknown++
			cells = append(cells, "unknown", "-", "-", "-")
		case s.Active:
			active++
			cells = append(cells, "active", fmt.Sprint(s.VMID), fmt.Sprint(s.Priority), "0x"+strconv.FormatUint(s.Ring, 16))
		default:
			cells = append(cells, "empty", "-", "-", "-")
		}
		t.Add(cells...)
	}
	if err := t.Write(w, 8); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d of %d slots hold a queue; the register layout of %d slots is unknown.\n", active, len(slots), unknown)
	return err
}

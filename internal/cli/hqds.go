package cli

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/giveway/giveway/internal/amd/kfd"
)

// hqdFile is where the kernel's dump is; tests have another.
var hqdFile = kfd.HQDFile

// doctorHQDs prints the hardware slots of AMD GPUs.
func doctorHQDs(out, warnings io.Writer, file string, asJSON bool) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("the kernel's dump of the slots, which is for root, with debugfs mounted and AMD's driver loaded: %w", err)
	}
	defer f.Close()
	if _, err := fmt.Fprintln(warnings, "Reading the slots holds up everything on the GPUs for a moment."); err != nil {
		return err
	}
	const most = 64 << 20 // bytes
	found, err := kfd.ParseHQDs(io.LimitReader(f, most))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if asJSON {
		if found == nil {
			found = []kfd.HQD{}
		}
		return writeJSON(out, found)
	}
	return printHQDs(out, found)
}

func printHQDs(w io.Writer, found []kfd.HQD) error {
	if len(found) == 0 {
		_, err := fmt.Fprintln(w, "There are no slots: no AMD GPU is here, or all are stopped.")
		return err
	}
	var t table
	t.add("GPU", "XCC", "PIPE", "QUEUE", "STATE", "VMID", "PRIORITY", "RING")
	active, unknown := 0, 0
	for _, q := range found {
		cells := []string{fmt.Sprint(q.GPU), fmt.Sprint(q.XCC), fmt.Sprint(q.Pipe), fmt.Sprint(q.Queue)}
		switch {
		case !q.Known:
			unknown++
			cells = append(cells, "not known", "-", "-", "-")
		case q.Active:
			active++
			cells = append(cells, "active", fmt.Sprint(q.VMID), fmt.Sprint(q.Priority), "0x"+strconv.FormatUint(q.Ring, 16))
		default:
			cells = append(cells, "empty", "-", "-", "-")
		}
		t.add(cells...)
	}
	if err := t.write(w, 8); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d of %d slots have a queue; of %d the registers are not known.\n", active, len(found), unknown)
	return err
}

package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/giveway/giveway/internal/format"
)

// targetRow is a row of a table of targets: limits, from the one that must be reached to the
// best, and what was measured.
type targetRow struct {
	what     string
	limits   []float64 // ascending strictness; the measured value is below, or above if more
	more     bool
	orEqual  bool // the limit itself is reached
	write    func(float64) string
	measured *float64
	note     string   // about the measurement, or why there is none
	doubt    string   // why the measured value does not decide; empty: it does
	beside   []string // more cells of the row
}

// levels names the limits of a target with three.
var levels = []string{"must", "should", "best"}

// targetTable is a table of targets, in Markdown.
type targetTable struct {
	head     []string // ends with "met?"
	machines []Machine
	driver   string // more about it; may be empty
	notes    string // paragraphs before the table
	rows     []targetRow
}

// write reports whether all limits that must be reached were.
func (t *targetTable) write(w io.Writer) (met bool, err error) {
	var text strings.Builder
	double := false
	for _, m := range t.machines {
		text.WriteString(m.facts(t.driver) + "\n\n")
		double = double || m.isDouble()
	}
	if double {
		text.WriteString("**Double, not hardware: the test ran end to end, and no figure says anything about a GPU.**\n\n")
	}
	text.WriteString(t.notes)
	line := func(cells []string) { fmt.Fprintf(&text, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.head)
	line(slices.Repeat([]string{"---"}, len(t.head)))
	met = true
	for _, r := range t.rows {
		reached, verdict := r.verdict()
		met = met && reached
		if double && r.measured != nil {
			verdict = "double, not hardware"
		}
		cells := slices.Concat([]string{r.title(), r.value()}, r.beside)
		for i := range cells {
			cells[i] = cell.Replace(cells[i])
		}
		for len(cells) < len(t.head)-1 {
			cells = append(cells, format.Missing)
		}
		line(append(cells, verdict))
	}
	_, err = io.WriteString(w, text.String())
	return met, err
}

// facts describes the machine that the targets were measured on.
func (m *Machine) facts(driver string) string {
	switch {
	case m.GPU == "":
		return "nothing was measured"
	case m.HIP == "":
		return strings.Join([]string{m.GPU, "CUDA " + m.CUDA, cmp.Or(m.Driver, "unknown driver"), "Linux " + m.Kernel, fmt.Sprintf("%d CPUs", m.CPUs)}, "; ")
	}
	return strings.Join([]string{m.GPU, m.Arch, "HIP " + m.HIP, m.Driver, driver, "Linux " + m.Kernel}, "; ")
}

// cell makes text of any kind fit into a cell of a table.
var cell = strings.NewReplacer("\n", "; ", "|", "\\|")

func (r *targetRow) title() string {
	if len(r.limits) == 0 {
		return r.what
	}
	sign := "<"
	if r.more {
		sign = ">"
	}
	if r.orEqual {
		sign += "="
	}
	var limits []string
	for _, l := range r.limits {
		limits = append(limits, r.write(l))
	}
	return fmt.Sprintf("%s %s %s", r.what, sign, strings.Join(limits, " / "))
}

func (r *targetRow) value() string {
	switch {
	case r.measured == nil && r.note == "":
		return "not measured"
	case r.measured == nil:
		return "not measured: " + r.note
	case r.note == "":
		return r.write(*r.measured)
	}
	return r.write(*r.measured) + " (" + r.note + ")"
}

// verdict says which of the limits was reached. A target that was not measured is not
// reached, nor one that the measurement does not decide.
func (r *targetRow) verdict() (reached bool, text string) {
	switch {
	case r.doubt != "":
		return false, r.doubt
	case r.measured == nil:
		return false, format.Missing
	}
	n := 0
	for _, l := range r.limits {
		if *r.measured < l == !r.more && *r.measured != l || r.orEqual && *r.measured == l {
			n++
		}
	}
	switch {
	case n == 0:
		return false, "NO"
	case len(r.limits) == 1:
		return true, "yes"
	}
	return true, "yes (" + levels[n-1] + ")"
}

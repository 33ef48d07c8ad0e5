package format

import (
	"fmt"
	"io"
	"strings"
)

// Table prints rows in columns. The zero value is an empty table.
type Table struct{ Rows []Row }

// Row is one line of a table.
type Row struct {
	Cells []string
	Note  string // printed after the cells; it does not widen a column
}

// Add appends a row and returns it. The pointer is valid until the next call. A
// row without cells prints as an empty line.
func (t *Table) Add(cells ...string) *Row {
	t.Rows = append(t.Rows, Row{Cells: cells})
	return &t.Rows[len(t.Rows)-1]
}

// Write prints the table. The first left columns are aligned to the left, the
// others to the right.
func (t *Table) Write(w io.Writer, left int) error {
	var widths []int
	for _, r := range t.Rows {
		for i, cell := range r.Cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], Width(cell))
		}
	}
	for _, r := range t.Rows {
		var b strings.Builder
		for i, cell := range r.Cells {
			pad := strings.Repeat(" ", widths[i]-Width(cell))
			if i < left {
				b.WriteString(cell + pad + "  ")
			} else {
				b.WriteString(pad + cell + "  ")
			}
		}
		b.WriteString(r.Note)
		if _, err := fmt.Fprintln(w, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

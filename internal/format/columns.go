package format

import (
	"slices"
	"strings"
)

// Column is a column of a table that is made to fit a terminal.
type Column struct {
	Head  string
	Cells []string // printable
	Right bool     // aligned to the right
	Min   int      // the width at the least, so that changing figures do not move the columns
	Max   int      // the width at the most; zero: any
	Elide int      // the width down to which cells may be shortened; zero: they are not
	Rank  int      // of columns that do not fit, those with the largest rank are left out first; zero: never
	Paint func(row int) Style

	width int
}

// natural returns the width at which no cell is shortened.
func (c *Column) natural() int {
	n := max(c.Min, Width(c.Head))
	for _, cell := range c.Cells {
		n = max(n, Width(cell))
	}
	if c.Max > 0 {
		n = min(n, max(c.Max, Width(c.Head)))
	}
	return n
}

// Columns is a table by columns.
type Columns struct {
	All []Column
	Gap int // spaces between two columns
}

// Fit chooses columns and their widths so that no line is longer than width; zero is any
// length. It shortens the cells of columns that allow it, the last column first, then leaves
// out columns, and at last cuts what is left.
func (t *Columns) Fit(width int) {
	for i := range t.All {
		t.All[i].width = t.All[i].natural()
	}
	if width <= 0 {
		return
	}
	for t.shortest() > width && t.drop() {
	}
	for i := range slices.Backward(t.All) {
		c := &t.All[i]
		if excess := t.total() - width; excess > 0 && c.Elide > 0 {
			c.width = max(c.width-excess, min(c.width, c.Elide))
		}
	}
	left := width
	for i := range t.All {
		t.All[i].width = max(min(t.All[i].width, left), 0)
		left -= t.All[i].width + t.Gap
	}
}

// total returns the length of a line.
func (t *Columns) total() int {
	n := -t.Gap
	for i := range t.All {
		n += t.All[i].width + t.Gap
	}
	return n
}

// shortest returns the length of a line in which all cells are shortened that may be.
func (t *Columns) shortest() int {
	n := t.total()
	for i := range t.All {
		if c := &t.All[i]; c.Elide > 0 {
			n -= max(c.width-c.Elide, 0)
		}
	}
	return n
}

// drop leaves out the column that matters least. It returns false if there is none.
func (t *Columns) drop() bool {
	worst := -1
	for i := range t.All {
		if t.All[i].Rank > 0 && (worst < 0 || t.All[i].Rank > t.All[worst].Rank) {
			worst = i
		}
	}
	if worst < 0 {
		return false
	}
	t.All = slices.Delete(t.All, worst, worst+1)
	return true
}

// Heads is the row of the heads, for Line.
const Heads = -1

// Line appends a row, without a line break and without spaces at its end. Without paint no
// style is used.
func (t *Columns) Line(b *strings.Builder, row int, paint bool) {
	spaces := 0
	for i := range t.All {
		c := &t.All[i]
		if c.width == 0 {
			break
		}
		cell, style := c.Head, Style("")
		if row != Heads {
			cell = c.Cells[row]
			if paint && c.Paint != nil {
				style = c.Paint(row)
			}
		}
		cell = Text(cell, c.width)
		pad := c.width - Width(cell)
		if c.Right {
			spaces += pad
			pad = 0
		}
		if cell != "" {
			writeSpaces(b, spaces)
			b.WriteString(style.Paint(cell))
			spaces = 0
		}
		spaces += pad + t.Gap
	}
}

func writeSpaces(b *strings.Builder, n int) {
	const many = "                                "
	for ; n > len(many); n -= len(many) {
		b.WriteString(many)
	}
	b.WriteString(many[:max(n, 0)])
}

// Package htmlreport draws the parts that all HTML reports share: the page's style
// and script, axes, and three kinds of plots. A report is one file that opens
// anywhere and loads nothing.
//
// Names in a report come from files and command lines. Every one goes through
// html/template, and Write replaces the characters that template leaves alone.
package htmlreport

import (
	"bytes"
	"embed"
	"html/template"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"unicode"
)

//go:embed *.tmpl
var shared embed.FS

// Parse returns the template "page.tmpl" of files. It may use the other templates
// of files and these shared ones:
//
//	style       the style sheet, for the head
//	script      the tooltips, for the end of the body
//	tail        a TailPlot
//	comparison  a Comparison
//	lines       a LinePlot
//
// It panics if a template is wrong.
func Parse(files fs.FS, funcs template.FuncMap) *template.Template {
	t := template.Must(template.New("page.tmpl").Funcs(funcs).ParseFS(shared, "*.tmpl"))
	return template.Must(t.ParseFS(files, "*.tmpl"))
}

// Write writes the page that t makes of data. It writes nothing if that fails.
func Write(w io.Writer, t *template.Template, data any) error {
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return err
	}
	_, err := w.Write(bytes.Map(visible, b.Bytes()))
	return err
}

// visible replaces the characters that are harmless to HTML but not to a reader:
// invalid UTF-8, control characters, and marks that change the direction of text.
func visible(r rune) rune {
	switch {
	case r == '\n' || r == '\t':
		return r
	case unicode.IsControl(r), r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return unicode.ReplacementChar
	}
	return r
}

// Colours are classes of the style sheet. Runs are drawn in strong colours, clients
// in dark ones if they are judged by latency and in light ones if by work.
const (
	AloneColour  = "al"
	NativeColour = "r0"
	SwitchColour = "sw"
)

// strongColours and dashes are how many colours of runs and patterns of lines there are.
const (
	strongColours = 6
	dashes        = 4
)

// RunColour is the colour of the nth run that is not native, and the pattern of its lines:
// the eye tells few colours apart, so runs after the sixth have dashed lines. The first 24
// are different.
func RunColour(n int) string {
	colour := "r" + strconv.Itoa(1+n%strongColours)
	if dash := n / strongColours % dashes; dash > 0 {
		colour += " d" + strconv.Itoa(dash)
	}
	return colour
}

// DarkColour is the colour of the nth client that is judged by latency.
func DarkColour(n int) string { return "o" + strconv.Itoa(n%4) }

// LightColour is the colour of the nth client that is judged by work.
func LightColour(n int) string { return "b" + strconv.Itoa(n%8) }

// clip shortens a name to n characters.
func clip(name string, n int) string {
	if r := []rune(name); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return name
}

// Coordinate writes a position in a drawing.
func Coordinate(x float64) string {
	s := strconv.FormatFloat(x, 'f', 2, 64)
	return strings.TrimRight(strings.TrimRight(s, "0"), ".")
}

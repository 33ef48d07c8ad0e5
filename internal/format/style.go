package format

// Style is a look of text on a terminal: the parameters of the control sequence SGR. The
// empty style changes nothing. The sixteen colours are those of the user's own palette.
type Style string

// The styles in use.
const (
	Plain   Style = ""
	Bold    Style = "1"
	Faint   Style = "2"
	Reverse Style = "7"
	Red     Style = "31"
	Green   Style = "32"
	Yellow  Style = "33"
	Blue    Style = "34"
	Magenta Style = "35"
	Cyan    Style = "36"
)

// Paint returns text in the style.
func (s Style) Paint(text string) string {
	if s == "" || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[m"
}

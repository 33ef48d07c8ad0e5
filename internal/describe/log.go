package describe

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/format"
)

// Widths of texts in a line of the log, which users choose.
const (
	shortText = 60
	longText  = 320 // the daemon's own limit is 300 bytes
)

// Log returns an order or a note of the record in one line: the caller, what it changed, from what
// to what, and the outcome. user returns the name of a uid, or an empty text. Of other entries it
// returns an empty text.
func Log(e *api.Entry, user func(uid int64) string) string {
	switch {
	case e.Order != nil:
		return logOrder(e, user)
	case e.Note != nil:
		return logNote(e)
	}
	return ""
}

func logOrder(e *api.Entry, user func(int64) string) string {
	o := e.Order
	var b strings.Builder
	switch who := caller(o, user); {
	case o.Name == "config":
		return logConfig(o)
	case who == "" && o.Refused:
		return "an order of another user was refused: " + format.Text(o.Name, shortText)
	case who == "":
		return "another user gave an order: " + format.Text(o.Name, shortText)
	case o.Refused:
		fmt.Fprintf(&b, "%s was refused: %s", who, wanted(e))
		if reason := strings.TrimPrefix(o.Reason, o.Name+": "); reason != "" {
			b.WriteString(": " + shown(reason))
		}
		if o.Status != 0 {
			fmt.Fprintf(&b, " (status %d)", o.Status)
		}
	default:
		b.WriteString(who + " " + did(e))
	}
	if o.LeftOut > 0 {
		fmt.Fprintf(&b, "; %s of this user before it left out, because there were too many", format.Plural(o.LeftOut, "line"))
	}
	return b.String()
}

// caller returns the caller that gave an order; an empty text if that is hidden.
func caller(o *api.Order, user func(int64) string) string {
	var about []string
	who := ""
	switch {
	case o.UID != nil:
		who = fmt.Sprintf("uid %d", *o.UID)
		if name := user(*o.UID); name != "" {
			who, about = format.Text(name, shortText), []string{who}
		}
	case o.Address != "":
		who = "a client at " + format.Text(o.Address, shortText)
	default:
		return ""
	}
	if o.Command != "" {
		about = append(about, format.Text(o.Command, shortText))
	}
	if o.PID != 0 {
		about = append(about, fmt.Sprintf("pid %d", o.PID))
	}
	if len(about) > 0 {
		who += " (" + strings.Join(about, ", ") + ")"
	}
	return who
}

// did returns what an order did, in the past tense.
func did(e *api.Entry) string {
	o := e.Order
	from, to := shown(o.From), shown(o.To)
	change := "to " + to
	if from != "" {
		change = "from " + from + " " + change
	}
	verb, again := "changed", ""
	if unchanged(o) {
		verb, again, change = "set", ": unchanged", "to "+to+": unchanged"
	}
	switch name, _ := pauseName(o); {
	case name == "pause":
		return "paused " + target(e) + again
	case name == "resume":
		return "resumed " + target(e) + again
	case o.Name == "set":
		return verb + " " + target(e) + " " + change
	case o.Name == "run":
		return "began a run with " + to
	case o.Name == "policy":
		return verb + " the policy " + change
	case o.Name == "restore":
		return "restored all devices, and " + verb + " the policy " + change
	}
	return strings.TrimSuffix(format.Text(o.Name, shortText)+" "+change, " to ")
}

// shown returns a text of an order or a note as a terminal shows it. The daemon has quoted
// what is not printable ASCII in it.
func shown(s string) string {
	if plain, err := strconv.Unquote(`"` + s + `"`); err == nil {
		s = plain
	}
	return format.Text(s, longText)
}

// wanted returns what a refused order wanted.
func wanted(e *api.Entry) string {
	words := []string{format.Text(e.Order.Name, shortText)}
	if e.Order.To != "" {
		words = append(words, shown(e.Order.To))
	}
	if e.PID != 0 {
		words = append(words, "of "+target(e))
	}
	return strings.Join(words, " ")
}

func target(e *api.Entry) string {
	text := fmt.Sprintf("process %d", e.PID)
	if e.Order.Tree {
		text += " and its descendants"
	}
	return text
}

func logConfig(o *api.Order) string {
	to := shown(o.To)
	if o.Refused {
		return "the configuration " + to + " was refused, and the one before stays in force: " + shown(o.Reason)
	}
	text := "the configuration was read again: " + to
	if o.From != "" {
		text += "; before " + shown(o.From)
	}
	return text
}

func logNote(e *api.Entry) string {
	text := shown(e.Note.Text)
	device := ""
	if e.Device != "" {
		device = " of device " + format.Text(e.Device, shortText)
	}
	switch e.Note.Name {
	case "overruled":
		return "the policy" + device + " was overruled, and the vendor's scheduling is in force: " + text
	case "resumed":
		return "the policy" + device + " decides again"
	case "inversion":
		return "priority inversion" + strings.Replace(device, " of ", " on ", 1) + ": " + text
	case "external":
		return "the external policy" + device + ": " + text
	case "guardian":
		return "guardian: " + text
	case "action":
		return "an action failed" + strings.Replace(device, " of ", " on ", 1) + ": " + text
	}
	return strings.TrimSuffix(format.Text(e.Note.Name, shortText)+device+": "+text, ": ")
}

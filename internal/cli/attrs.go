package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/policy"
	"github.com/spf13/cobra"
)

// attrFlags are the flags of a command that set attributes.
type attrFlags struct {
	values attr.Values // from the flags that were given
	way    attr.Way
}

// register adds a flag for each attribute that can be set in that way.
func (f *attrFlags) register(cmd *cobra.Command, way attr.Way) {
	f.way = way
	cmd.Flags().SortFlags = false // attributes in the order of their table
	for _, id := range attr.IDs(way) {
		r := id.Row()
		flag := cmd.Flags().VarPF(&attrFlag{f, id}, r.Name, "", attrUsage(r))
		switch {
		case r.Type == attr.TypeBool:
			flag.NoOptDefVal = "true"
		case id == attr.Pool:
			flag.NoOptDefVal = attr.ModeOn.String()
		}
		if r.Default != 0 {
			flag.DefValue = r.Format(r.Default)
		}
		if r.Type == attr.TypeWord {
			_ = cmd.RegisterFlagCompletionFunc(r.Name, cobra.FixedCompletions(r.Words, cobra.ShellCompDirectiveNoFileComp)) // fails only for unknown flags
		}
	}
	_ = cmd.RegisterFlagCompletionFunc(attr.Class.String(), completeClass) // fails only for unknown flags
}

// given returns the attributes that were given on the command line.
func (f *attrFlags) given() (attr.Values, error) {
	if err := f.values.Check(f.way); err != nil {
		return attr.Values{}, usageError{err}
	}
	return f.values, nil
}

// attrFlag is the flag of one attribute.
type attrFlag struct {
	flags *attrFlags
	id    attr.ID
}

func (f *attrFlag) Set(text string) error { return f.flags.values.ParseInto(f.id, text) }

// clearHelp says how set and hint take back an attribute.
const clearHelp = `The value default takes back an attribute that was given in this way (--class default,
--focus=default): that of another source is in force again.`

func (f *attrFlag) String() string { return "" }
func (f *attrFlag) Type() string   { return f.id.Row().Type.String() }

// attrUsage returns the help text of an attribute's flag.
func attrUsage(r *attr.Row) string {
	s := r.Help
	switch r.Type {
	case attr.TypeClass:
		s += ": " + strings.Join(attr.ClassNames(), ", ")
	case attr.TypeWord:
		s += ": " + strings.Join(r.Words, ", ")
	}
	if r.Zero != "" {
		s += "; " + r.Format(0) + ": " + r.Zero
	}
	var notes []string
	if r.Shim {
		notes = append(notes, "needs the shim")
	}
	if users := policy.NamesUsing(r.Uses); len(users) > 0 {
		word := "policies "
		if len(users) == 1 {
			word = "policy "
		}
		notes = append(notes, word+strings.Join(users, ", "))
	}
	if len(notes) > 0 {
		s += " (" + strings.Join(notes, "; ") + ")"
	}
	return s
}

func completeClass(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var words []string
	for _, c := range attr.Classes() {
		words = append(words, cobra.CompletionWithDesc(c.Class.String(), c.Help))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// needsShim returns the name of an attribute in v that has no effect without the shim.
func needsShim(v attr.Values) string {
	for _, id := range v.IDs() {
		value, _ := v.Get(id)
		if r := id.Row(); r.Shim && (value != 0 || r.Type != attr.TypeBool && r.Type != attr.TypeWord) {
			return r.Name
		}
	}
	return ""
}

// warnIgnored warns of the attributes in v that have no effect, or less than was asked for.
func warnIgnored(cmd *cobra.Command, v attr.Values, ignored []api.Ignored) {
	for _, id := range v.IDs() {
		i := slices.IndexFunc(ignored, func(i api.Ignored) bool { return i.Name == id.String() })
		if i < 0 {
			continue
		}
		value, _ := v.Get(id)
		effect, reason := ignored[i].Effect()
		printMessage(cmd, "warning", fmt.Sprintf("%s %s: %s", attrText(id, value), effect, format.Printable(reason)))
	}
}

// attrText returns an attribute and its value: slo 10ms, paused.
func attrText(id attr.ID, value int64) string {
	r := id.Row()
	switch {
	case r.Type == attr.TypeBool && value != 0:
		return r.Name
	case id == attr.Expect: // counts down: all its digits would mean nothing
		return r.Name + " " + format.Duration(time.Duration(value))
	}
	return r.Name + " " + r.Format(value)
}

// attrsText returns the attributes of a process that differ from their defaults, without
// its class and those in except. Attributes that have no effect are marked.
func attrsText(p *api.Process, except ...attr.ID) string {
	var parts []string
	for _, id := range p.Attrs.Given().IDs() {
		if value := p.Attrs.Int(id); id != attr.Class && value != id.Row().Default && !slices.Contains(except, id) {
			parts = append(parts, attrText(id, value)+ignoredMark(p, id, " (%s)"))
		}
	}
	return strings.Join(parts, ", ")
}

// ignoredMark returns the mark of an attribute that has no effect on a process, in the
// given format.
func ignoredMark(p *api.Process, id attr.ID, layout string) string {
	for _, i := range p.Ignored {
		if i.Name == id.String() {
			return fmt.Sprintf(layout, format.Printable(cmp.Or(i.Mark, "ignored")))
		}
	}
	return ""
}

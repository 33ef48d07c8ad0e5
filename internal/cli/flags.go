package cli

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/yamlfile"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addJSON adds the flag --json, which wantsJSON reads.
func addJSON(cmd *cobra.Command, usage string) { cmd.Flags().Bool("json", false, usage) }

// wantsJSON reports whether --json was given.
func wantsJSON(cmd *cobra.Command) bool {
	yes, _ := cmd.Flags().GetBool("json") // false without the flag
	return yes
}

// printJSON is the usual help text of --json.
const printJSON = "print JSON"

// flagError says which values a flag takes if it was given another, and which flag an
// unknown one is perhaps a misspelling of.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := yamlfile.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			return fmt.Errorf("%w; did you mean --%s?", err, near)
		}
		for _, id := range attr.IDs(0) {
			if r := id.Row(); r.Name == unknown.GetSpecifiedName() {
				return fmt.Errorf("%w: %s can be given only by: %v", err, r.Name, r.Ways)
			}
		}
		return err
	}
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	if _, isPID := bad.GetFlag().Value.(*pidFlag); isPID {
		return bad.Unwrap()
	}
	takes := takenBy(bad.GetFlag().Value)
	if takes == "" {
		return err
	}
	value := cmp.Or(format.Text(bad.GetValue(), 40), `""`)
	return fmt.Errorf("%s %s is not %s", bad.GetFlag().Name, value, takes)
}

// emptyFlag returns an error if a text was given as empty, as by --device "$GPU" without that
// variable. Otherwise it would mean the default: all devices, or the machine's own socket.
func emptyFlag(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" {
			err = fmt.Errorf("--%s is empty: give it a value, or leave the flag out", f.Name)
		}
	})
	return err
}

// takenBy returns which values a flag takes.
func takenBy(v pflag.Value) string {
	if f, ok := v.(*attrFlag); ok {
		return f.id.Row().Takes()
	}
	switch v.Type() {
	case "bool":
		return "true or false"
	case "duration":
		return "a time: a number and a unit, such as 20ms, 10m or 2h"
	case "float64":
		return "a number"
	case "int", "int64":
		return "a whole number of at most 64 bits"
	case "uint64":
		return "a whole number from 0, of at most 64 bits"
	case "intSlice":
		return "a list of numbers such as 1,2,4"
	}
	return ""
}

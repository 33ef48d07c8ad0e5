package cli

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// number is a flag that takes a number within bounds.
type number struct {
	to          *uint32
	least, most uint32
	zero        string // what 0 stands for, if anything
}

func (n *number) Set(s string) error {
	v, err := strconv.ParseUint(s, 0, 32)
	if err != nil || v < uint64(n.least) || v > uint64(n.most) {
		return errors.New("it is not " + n.takes())
	}
	*n.to = uint32(v)
	return nil
}

// takes is worded as api.Change has it.
func (n *number) takes() string {
	if n.zero == "" {
		return fmt.Sprintf("from %d to %d", n.least, n.most)
	}
	return fmt.Sprintf("from %d, for %s, to %d", n.least, n.zero, n.most)
}

func (n *number) String() string { return strconv.FormatUint(uint64(*n.to), 10) }
func (n *number) Type() string   { return "number" }

// flagError says of a value that a flag does not take what it takes.
func flagError(_ *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	takes := takenBy(bad.GetFlag().Value)
	if takes == "" {
		return err
	}
	value := cmp.Or(cut(printable(bad.GetValue()), 40), `""`)
	return fmt.Errorf("%s %s is not %s", bad.GetFlag().Name, value, takes)
}

func takenBy(v pflag.Value) string {
	if n, ok := v.(*number); ok {
		return n.takes()
	}
	switch v.Type() {
	case "bool":
		return "true or false"
	case "duration":
		return "a time such as 20ms"
	case "int32":
		return fmt.Sprintf("a whole number from %d to %d", math.MinInt32, math.MaxInt32)
	case "int", "int64":
		return "a whole number of at most 64 bits"
	case "uint64":
		return "a whole number from 0, of at most 64 bits"
	case "intSlice":
		return "a list of numbers such as 1,2,4"
	}
	return ""
}

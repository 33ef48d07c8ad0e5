package attr

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/sched"
)

// Takes describes the values that the attribute takes. An error ends with "is not" and
// this text.
func (r *Row) Takes() string {
	from := r.Format(r.Min)
	if r.Zero != "" {
		from += " (" + r.Zero + ")"
	}
	limits := fmt.Sprintf("from %s to %s", from, r.Format(r.Max))
	switch r.Type {
	case TypeClass:
		return "one of " + strings.Join(ClassNames(), ", ")
	case TypeDuration:
		return "a time " + limits + ", such as 20ms"
	case TypeBool:
		return "true or false"
	case TypeWord:
		return "one of " + strings.Join(r.Words, ", ")
	case TypePercent:
		return "a whole percentage " + limits + ", such as 25%"
	}
	return "a whole number " + limits
}

// Format returns a value as Parse reads it.
func (r *Row) Format(v int64) string {
	switch r.Type {
	case TypeClass:
		return sched.Class(v).String()
	case TypeDuration:
		if v == 0 {
			return "0"
		}
		return format.ExactDuration(time.Duration(v))
	case TypeBool:
		return strconv.FormatBool(v != 0)
	case TypePercent:
		return strconv.FormatInt(v, 10) + "%"
	case TypeWord:
		if v >= 0 && v < int64(len(r.Words)) {
			return r.Words[v]
		}
		return "unknown-" + strconv.FormatInt(v, 10)
	}
	return strconv.FormatInt(v, 10)
}

// Parse reads a value as people write it: batch, 20ms, 25%.
func (r *Row) Parse(text string) (int64, error) {
	v, ok := r.parse(strings.TrimSpace(text))
	if !ok || r.check(v) != nil {
		return 0, r.refuse(text)
	}
	return v, nil
}

func (r *Row) parse(s string) (v int64, ok bool) {
	switch r.Type {
	case TypeClass:
		c, err := sched.ParseClass(s)
		return int64(c), err == nil
	case TypeDuration:
		if s == "0" {
			return 0, true
		}
		d, err := time.ParseDuration(s)
		return int64(d), err == nil
	case TypeBool:
		return truth(s == "true"), s == "true" || s == "false"
	case TypePercent:
		return parsePercent(s)
	case TypeWord:
		i := slices.Index(r.Words, s)
		return int64(i), i >= 0
	}
	v, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
	return v, err == nil
}

// parsePercent reads 25% or 0.25.
func parsePercent(s string) (int64, bool) {
	number, isPercent := strings.CutSuffix(s, "%")
	x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !isPercent {
		x *= 100
	}
	// 0.29 * 100 is not 29 in float64.
	whole := math.Round(x)
	if err != nil || math.IsNaN(x) || math.Abs(x-whole) > 1e-9 || math.Abs(x) > 1000 {
		return 0, false
	}
	return int64(whole), true
}

// check returns an error if v is out of range.
func (r *Row) check(v int64) error {
	if v < r.Min || v > r.Max {
		return r.refuse(r.Format(v))
	}
	return nil
}

func (r *Row) refuse(value string) error {
	return fmt.Errorf("%s %s is not %s", r.Name, printable(value), r.Takes())
}

// printable returns a value for use in an error: at most 40 characters, and no control
// characters.
func printable(value string) string {
	value = strings.Map(func(c rune) rune {
		if c == unicode.ReplacementChar || !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, value)
	if letters := []rune(value); len(letters) > 40 {
		value = string(letters[:37]) + "..."
	}
	if value == "" {
		value = `""`
	}
	return value
}

// toJSON returns a value as JSON.
func (r *Row) toJSON(v int64) string {
	switch r.Type {
	case TypeClass, TypeWord:
		return strconv.Quote(r.Format(v))
	case TypeBool:
		return r.Format(v)
	}
	return strconv.FormatInt(v, 10)
}

// fromJSON reads a value from JSON: a class or another word by its name, a time in nanoseconds.
func (r *Row) fromJSON(data json.RawMessage) (int64, error) {
	text := string(data)
	switch r.Type {
	case TypeClass, TypeWord:
		_ = json.Unmarshal(data, &text) // what is not a string is not one of the words either
		return r.Parse(text)
	case TypeBool:
		return r.Parse(text)
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		what := map[Type]string{TypeDuration: " in nanoseconds", TypePercent: " of percent"}[r.Type]
		return 0, fmt.Errorf("%w; %s is a whole number%s", r.refuse(text), r.Key, what)
	}
	return v, r.check(v)
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

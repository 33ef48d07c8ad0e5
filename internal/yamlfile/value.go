package yamlfile

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseTime parses a duration. It must have a unit, except for 0.
func ParseTime(s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	if s == "0" {
		return 0, nil
	}
	return time.ParseDuration(s)
}

// ParseRatio parses a share such as 2% or 0.02.
func ParseRatio(s string) (float64, error) {
	number, isPercent := strings.CutSuffix(strings.TrimSpace(s), "%")
	x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err == nil && (math.IsNaN(x) || math.IsInf(x, 0)) {
		err = errors.New("not a number")
	}
	if isPercent {
		x /= 100
	}
	return x, err
}

func percent(x float64) string { return strconv.FormatFloat(100*x, 'g', -1, 64) + "%" }

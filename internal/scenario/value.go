package scenario

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/yamlfile"
)

// hour is the maxLength that anything in a scenario takes.
const hour = time.Hour

// parseEvery parses a period, or a rate such as 50/s, and returns the period.
func parseEvery(s string) (time.Duration, error) {
	number, isRate := strings.CutSuffix(strings.TrimSpace(s), "/s")
	if !isRate {
		return yamlfile.ParseTime(s)
	}
	x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !(x >= 1e-4 && x <= 1e9) {
		return 0, fmt.Errorf("%q is not a rate", s)
	}
	return time.Duration(math.Round(float64(time.Second) / x)), nil
}

// parseBytes parses a size such as 185MB.
func parseBytes(s string) (float64, error) {
	number := strings.TrimSuffix(strings.TrimSpace(s), "B")
	scale := 1.0
	for i, unit := range []string{"k", "M", "G", "T"} {
		if cut, ok := strings.CutSuffix(number, unit); ok {
			number, scale = cut, math.Pow(1000, float64(i+1))
			break
		}
	}
	x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err == nil && !(x >= 0 && x*scale <= 1e18) {
		err = errors.New("out of range")
	}
	return x * scale, err
}

// distNames are in the order of sim.DistKind, from sim.Uniform.
var distNames = []string{"uniform", "normal", "lognormal", "exponential"}

// readTime reads a time or a distribution of times, from lo to hi.
func readTime(f *form, name string, v *sim.Dist, lo, hi time.Duration) {
	if f.IsForm(name) {
		*v = readDist(f.Form(name), lo, hi)
	} else if s, ok := f.Scalar(name, "a time such as 20ms or {uniform: [20us, 60us]}"); ok {
		*v = sim.Dist{}
		f.CheckTime(name, s, &v.Mean, lo, hi)
	}
}

// readDist reads a distribution. The jitter has a limit, so that no random time
// overflows.
func readDist(f *form, lo, hi time.Duration) (d sim.Dist) {
	i := f.Kind("distribution", distNames)
	d.Kind = sim.DistKind(i + 1)
	switch d.Kind {
	case sim.Uniform:
		f.Interval("uniform", &d.Min, &d.Max, lo, hi)
		d.Mean = (d.Min + d.Max) / 2
	case sim.Exponential:
		f.Duration("exponential", &d.Mean, lo, hi)
	case sim.Normal, sim.LogNormal:
		f.Duration(distNames[i], &d.Mean, lo, hi)
		if !f.Has("jitter") {
			f.Wrong("", "jitter is missing: the standard deviation as a share of the mean, for example jitter: 3%%")
		}
		fallthrough
	default:
		f.Ratio("jitter", &d.Jitter, 0, 3)
	}
	f.Done("a time")
	return d
}

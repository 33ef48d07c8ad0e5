package scenario

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"go.yaml.in/yaml/v3"
)

// hour is the longest that anything in a scenario takes.
const hour = time.Hour

// parseTime reads a duration. A bare number is refused, but for 0: nobody
// remembers which unit it would be.
func parseTime(s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	if s == "0" {
		return 0, nil
	}
	return time.ParseDuration(s)
}

// short is d as people write it: 1h, and not 1h0m0s.
func short(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m", "µ", "u").Replace(d.String())
}

// parseRatio reads 2% or 0.02.
func parseRatio(s string) (float64, error) {
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

// parseEvery reads a period, or a rate such as 50/s, and returns the period.
func parseEvery(s string) (time.Duration, error) {
	number, isRate := strings.CutSuffix(strings.TrimSpace(s), "/s")
	if !isRate {
		return parseTime(s)
	}
	x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !(x >= 1e-4 && x <= 1e9) {
		return 0, fmt.Errorf("%q is not a rate", s)
	}
	return time.Duration(math.Round(float64(time.Second) / x)), nil
}

// parseBytes reads a size such as 185MB, or a bandwidth such as 5.3TB/s without
// its /s.
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

// distNames are the distributions there are, in the order of sim.DistKind. A
// fixed time is written as such.
var distNames = []string{"uniform", "normal", "lognormal", "exponential"}

var distKinds = []sim.DistKind{sim.Uniform, sim.Normal, sim.LogNormal, sim.Exponential}

// dist reads a distribution written as fields. The jitter is bounded so that no
// draw can leave the range of a time.
func (r *reader) dist(f *form, v *sim.Dist, lo, hi time.Duration) {
	d := sim.Dist{}
	given := 0
	for i, name := range distNames {
		if !f.has(name) {
			f.asked = append(f.asked, name)
			continue
		}
		given++
		d.Kind = distKinds[i]
		if name == "uniform" {
			r.uniform(f, &d, lo, hi)
		} else {
			f.duration(name, &d.Mean, lo, hi)
		}
	}
	if f.has("normal") || f.has("lognormal") || given == 0 {
		f.ratio("jitter", &d.Jitter, 0, 3)
	}
	before := len(r.errs)
	f.done("a time")
	where := strings.TrimSuffix(f.path, ".")
	switch {
	case len(r.errs) > before:
	case given == 0:
		r.wrong(f.at, where, "which distribution? There are: %s", strings.Join(distNames, ", "))
	case given > 1:
		r.wrong(f.at, where, "%d distributions, where one is wanted", given)
	case (d.Kind == sim.Normal || d.Kind == sim.LogNormal) && !f.has("jitter"):
		r.wrong(f.at, where, "jitter is missing: the standard deviation as a part of the mean, for example jitter: 3%%")
	}
	*v = d
}

// uniform reads the two ends of a uniform distribution.
func (r *reader) uniform(f *form, d *sim.Dist, lo, hi time.Duration) {
	ends := []*time.Duration{&d.Min, &d.Max}
	n := f.get("uniform")
	if n.Kind != yaml.SequenceNode || len(n.Content) != 2 {
		f.wrong("uniform", "%s, where the two ends are wanted, such as [20us, 60us]", kind(n))
		return
	}
	before := len(r.errs)
	for i, end := range n.Content {
		end = r.node(end, f.path+"uniform")
		if end.Kind != yaml.ScalarNode {
			f.wrong("uniform", "%s, where a time is wanted, such as 20us", kind(end))
			return
		}
		f.checkTime("uniform", end.Value, ends[i], lo, hi)
	}
	if d.Max < d.Min && len(r.errs) == before {
		f.wrong("uniform", "the second end, %s, lies before the first, %s", short(d.Max), short(d.Min))
	}
	d.Mean = (d.Min + d.Max) / 2
}

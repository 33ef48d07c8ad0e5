package scenario

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/yamlfile"
	"go.yaml.in/yaml/v3"
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

// distNames are the names of distKinds. A fixed time has no name.
var distNames = []string{"uniform", "normal", "lognormal", "exponential"}

var distKinds = []sim.DistKind{sim.Uniform, sim.Normal, sim.LogNormal, sim.Exponential}

// dist reads a distribution from a mapping. The jitter has a limit, so that no random
// time overflows.
func (r *reader) dist(f *form, v *sim.Dist, lo, hi time.Duration) {
	d := sim.Dist{}
	given := 0
	for i, name := range distNames {
		if !f.Has(name) {
			f.Ask(name)
			continue
		}
		given++
		d.Kind = distKinds[i]
		if name == "uniform" {
			r.uniform(f, &d, lo, hi)
		} else {
			f.Duration(name, &d.Mean, lo, hi)
		}
	}
	if f.Has("normal") || f.Has("lognormal") || given == 0 {
		f.Ratio("jitter", &d.Jitter, 0, 3)
	}
	before := r.Mistakes()
	f.Done("a time")
	where := f.Where()
	switch {
	case r.Mistakes() > before:
	case given == 0:
		r.Wrong(f.At(), where, "the distribution is missing; there are: %s", strings.Join(distNames, ", "))
	case given > 1:
		r.Wrong(f.At(), where, "%d distributions, where one is wanted", given)
	case (d.Kind == sim.Normal || d.Kind == sim.LogNormal) && !f.Has("jitter"):
		r.Wrong(f.At(), where, "jitter is missing: the standard deviation as a share of the mean, for example jitter: 3%%")
	}
	*v = d
}

// uniform reads the two ends of a uniform distribution.
func (r *reader) uniform(f *form, d *sim.Dist, lo, hi time.Duration) {
	ends := []*time.Duration{&d.Min, &d.Max}
	n := f.Get("uniform")
	if n.Kind != yaml.SequenceNode || len(n.Content) != 2 {
		f.Wrong("uniform", "%s, where the two ends are wanted, such as [20us, 60us]", yamlfile.Kind(n))
		return
	}
	before := r.Mistakes()
	for i, end := range n.Content {
		end = r.Node(end, f.Path("uniform"))
		if end.Kind != yaml.ScalarNode {
			f.Wrong("uniform", "%s, where a time is wanted, such as 20us", yamlfile.Kind(end))
			return
		}
		f.CheckTime("uniform", end.Value, ends[i], lo, hi)
	}
	if d.Max < d.Min && r.Mistakes() == before {
		f.Wrong("uniform", "the second end, %s, is less than the first, %s", format.ExactDuration(d.Max), format.ExactDuration(d.Min))
	}
	d.Mean = (d.Min + d.Max) / 2
}

// times reads a time or a distribution of times, from lo to hi.
func (r *reader) times(f *form, name string, v *sim.Dist, lo, hi time.Duration) {
	n := f.Get(name)
	switch {
	case n == nil:
	case n.Kind == yaml.ScalarNode && n.Tag != "!!null":
		d := sim.Dist{}
		f.CheckTime(name, n.Value, &d.Mean, lo, hi)
		*v = d
	case n.Kind == yaml.MappingNode:
		r.dist(r.Form(n, f.Path(name)), v, lo, hi)
	default:
		f.Wrong(name, "%s, where a time is wanted, such as 20ms or {uniform: [20us, 60us]}", yamlfile.Kind(n))
	}
}

package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"

	"github.com/giveway/giveway/internal/yamlfile"
)

// Native is the policy without a daemon.
const Native = "native"

// spec is a policy with parameters, written giveway:turn=20ms,slice=200us.
type spec struct {
	name   string
	params map[string]string
}

func parseSpec(s string) (spec, error) {
	name, rest, hasParams := strings.Cut(s, ":")
	p := spec{name, map[string]string{}}
	if !hasParams {
		return p, nil
	}
	for pair := range strings.SplitSeq(rest, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" || value == "" {
			return p, fmt.Errorf("policy %s: %q is not a parameter with a value, such as turn=20ms", name, pair)
		}
		p.params[key] = value
	}
	return p, nil
}

func (p spec) String() string {
	s, sep := p.name, ":"
	for _, key := range slices.Sorted(maps.Keys(p.params)) {
		s += sep + key + "=" + p.params[key]
		sep = ","
	}
	return s
}

func (p spec) choice() (sched.PolicyChoice, error) {
	c, err := policy.Choose(p.name, p.params)
	if near := yamlfile.Nearest(p.name, policy.Names()); err != nil && near != "" && near != p.name {
		err = fmt.Errorf("there is no policy %q; %s", p.name, yamlfile.OneOf(p.name, policy.Names()))
	}
	return c, err
}

// checkParam returns an error if a policy does not take a parameter and its value.
func checkParam(name, param, value string) error {
	_, err := policy.Choose(name, map[string]string{param: value})
	return err
}

// CheckPolicy returns an error if Run cannot use a policy.
func CheckPolicy(s string) error {
	_, _, err := ParsePolicy(s)
	return err
}

// ParsePolicy splits a policy, as Run takes it, into name and parameters and checks
// both.
func ParsePolicy(s string) (name string, params map[string]string, err error) {
	p, err := parseSpec(s)
	if err == nil {
		_, err = p.choice()
	}
	return p.name, p.params, err
}

// SplitPolicies splits a list of policies at its commas, except for those between
// the parameters of a policy: native,giveway:turn=20ms,slice=200us is two policies.
func SplitPolicies(list string) []string {
	var all []string
	for word := range strings.SplitSeq(list, ",") {
		isParam := strings.Contains(word, "=") && !strings.Contains(word, ":")
		if last := len(all) - 1; isParam && last >= 0 && strings.Contains(all[last], ":") {
			all[last] += "," + word
			continue
		}
		all = append(all, strings.TrimSpace(word))
	}
	return all
}

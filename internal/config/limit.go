package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/yamlfile"
)

// Limit bounds what users may ask for their processes.
type Limit struct {
	// Ceiling has the value of each limited attribute that asks for the most that the
	// users may give by run, set and hint.
	Ceiling attr.Values
	Line    int // in the file

	user, group *regexp.Regexp // nil: any
	names       []Name
}

// Limit returns the first limit that matches a user; without one there is none.
// groups has the names and the numbers of the user's groups.
func (c *Config) Limit(uid uint32, name string, groups []string) Limit {
	for _, l := range c.Limits {
		user := l.user == nil || l.user.MatchString(name) || l.user.MatchString(strconv.FormatUint(uint64(uid), 10))
		if user && (l.group == nil || slices.ContainsFunc(groups, l.group.MatchString)) {
			return l
		}
	}
	return Limit{}
}

// LimitsGroups reports whether a limit depends on the groups of users.
func (c *Config) LimitsGroups() bool {
	return slices.ContainsFunc(c.Limits, func(l Limit) bool { return l.group != nil })
}

// Name is the name of a user or a group in a rule or a limit: not a number, and not a pattern.
type Name struct {
	Text  string
	Group bool
	Line  int
}

func (n Name) String() string {
	if n.Group {
		return fmt.Sprintf("group %s (line %d)", n.Text, n.Line)
	}
	return fmt.Sprintf("user %s (line %d)", n.Text, n.Line)
}

// Names returns the names of users and groups in rules and limits.
func (c *Config) Names() (all []Name) {
	for i := range c.Rules {
		all = append(all, c.Rules[i].names...)
	}
	for i := range c.Limits {
		all = append(all, c.Limits[i].names...)
	}
	return all
}

// appendName appends n unless it is a number or a pattern.
func appendName(all []Name, n Name) []Name {
	if _, err := strconv.ParseUint(n.Text, 10, 32); err == nil || strings.ContainsAny(n.Text, "*?") {
		return all
	}
	return append(all, n)
}

func limits(f *yamlfile.Form, c *Config) {
	f.List("limits", "", maxRules, func(lf *yamlfile.Form) {
		l := Limit{Line: lf.Line()}
		before := lf.Mistakes()
		lf.Need("match", "{user: alice}, {group: students}, or match: {} for every user")
		if mf := lf.Form("match"); mf != nil {
			if s, ok := pattern(mf, "user"); ok {
				l.user = glob(s)
				l.names = appendName(l.names, Name{Text: s, Line: l.Line})
			}
			if s, ok := pattern(mf, "group"); ok {
				l.group = glob(s)
				l.names = appendName(l.names, Name{Text: s, Line: l.Line, Group: true})
			}
			mf.Done("a match")
		}
		l.Ceiling = attr.ReadLimits(lf)
		lf.Done("a limit")
		if lf.Mistakes() > before {
			return
		}
		if l.Ceiling.Empty() {
			lf.Wrong("", "the limit limits no attribute; for example class: batch")
		}
		if last := len(c.Limits) - 1; last >= 0 && c.Limits[last].user == nil && c.Limits[last].group == nil {
			lf.Wrong("", "the limit is never used: the limit above, on line %d, matches every user", c.Limits[last].Line)
		}
		c.Limits = append(c.Limits, l)
	})
}

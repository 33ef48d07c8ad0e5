package config

import (
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/yamlfile"
)

// Rule gives attributes to the processes that match.
type Rule struct {
	Attrs attr.Values
	// HintsRaise lets the hints of the processes ask for more than Attrs give them.
	HintsRaise bool

	line  int
	match match
	names []Name
}

// Subject is a process that rules are compared with.
type Subject struct {
	proc.Process
	User      string         // the name of its user
	Container *api.Container // the registered container that it is in; nil: none
}

// Match returns the first rule that a process matches, or a rule without attributes. A
// process can choose its own command line and cgroup, so a rule is a convenience and not an
// access control.
func (c *Config) Match(p *Subject) Rule {
	for i := range c.Rules {
		if c.Rules[i].match.matches(p) {
			return c.Rules[i]
		}
	}
	return Rule{}
}

// match holds the conditions of a rule. Those that are empty hold for every process.
type match struct {
	user, command, search, cgroup *regexp.Regexp
	containerID, podUID           string // a prefix of the id, the UID

	container, pod, namespace *regexp.Regexp // names; they hold for no process outside a registered container
}

// everything reports whether every process matches.
func (m *match) everything() bool { return *m == match{} }

func (m *match) matches(p *Subject) bool {
	is := func(re *regexp.Regexp, s string) bool { return re == nil || re.MatchString(s) }
	id, pod, names := p.Process.Container, p.Pod, api.ContainerNames{}
	if p.Container != nil {
		id, pod, names = p.Container.ID, p.Container.PodUID, p.Container.ContainerNames
	}
	named := func(re *regexp.Regexp, s string) bool { return re == nil || s != "" && re.MatchString(s) }
	return (is(m.user, p.User) || is(m.user, strconv.FormatUint(uint64(p.UID), 10))) &&
		is(m.cgroup, p.Cgroup) && strings.HasPrefix(id, m.containerID) && (m.podUID == "" || m.podUID == pod) &&
		named(m.container, names.Name) && named(m.pod, names.Pod) && named(m.namespace, names.Namespace) &&
		m.matchesCommand(strings.Fields(p.Command))
}

// matchesCommand compares a pattern with the program's name, and with the command line
// with and without the program's folder.
func (m *match) matchesCommand(words []string) bool {
	line := strings.Join(words, " ")
	if m.search != nil && !m.search.MatchString(line) {
		return false
	}
	if m.command == nil || m.command.MatchString(line) {
		return true
	}
	if len(words) == 0 {
		return false
	}
	words[0] = path.Base(words[0])
	return m.command.MatchString(words[0]) || m.command.MatchString(strings.Join(words, " "))
}

// glob turns a pattern of * (any text, also none) and ? (one character) into an
// expression that matches a whole text.
func glob(pattern string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for _, c := range pattern {
		switch c {
		case '*':
			b.WriteString(".*")
		case '?':
			b.WriteByte('.')
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	b.WriteString(`\z`)
	return regexp.MustCompile(b.String()) // quoted text always compiles
}

func rules(f *yamlfile.Form, c *Config) {
	f.List("rules", "", maxRules, func(rf *yamlfile.Form) {
		rule := Rule{line: rf.Line()}
		before := rf.Mistakes()
		rf.Need("match", "{user: alice, command: 'python* *train*'}, or match: {} for every process")
		if mf := rf.Form("match"); mf != nil {
			if user := readMatch(mf, &rule.match); user != "" {
				rule.names = appendName(nil, Name{Text: user, Line: rule.line})
			}
		}
		rule.Attrs = attr.ReadYAML(rf, attr.ByRule)
		rf.Boolean("hints_raise", &rule.HintsRaise)
		rf.Done("a rule")
		if rf.Mistakes() > before {
			return
		}
		if rule.Attrs.Empty() {
			rf.Wrong("", "the rule sets no attribute; for example class: batch")
		} else if err := rule.Attrs.Check(attr.ByRule); err != nil {
			rf.Wrong("", "%v", err)
		}
		if last := len(c.Rules) - 1; last >= 0 && c.Rules[last].match.everything() {
			rf.Wrong("", "the rule is never used: the rule above, on line %d, matches every process", c.Rules[last].line)
		}
		c.Rules = append(c.Rules, rule)
	})
}

// maxPattern is the length of the longest pattern.
const maxPattern = 1000

// readMatch reads the conditions of a rule. It returns the pattern for the user; empty: any.
func readMatch(f *yamlfile.Form, m *match) (user string) {
	for _, field := range []struct {
		name string
		re   **regexp.Regexp
	}{
		{"user", &m.user},
		{"command", &m.command},
		{"cgroup", &m.cgroup},
		{"container", &m.container},
		{"pod", &m.pod},
		{"namespace", &m.namespace},
	} {
		if s, ok := pattern(f, field.name); ok {
			if *field.re = glob(s); field.name == "user" {
				user = s
			}
		}
	}
	if s, ok := pattern(f, "command_regexp"); ok {
		re, err := regexp.Compile(s)
		if err != nil {
			f.Wrong("command_regexp", "%v", err)
		}
		m.search = re
	}
	identifier(f, "container_id", &m.containerID, containerID, "a container id, or its first 12 or more hex digits")
	identifier(f, "pod_uid", &m.podUID, podUID, "the UID of a pod, such as 2f1b7a04-5c1e-4a53-9d3b-8a7a6f0c1d2e")
	f.Done("a match")
	return user
}

// The forms in which package proc finds them. The UID of a static pod has no dashes.
var (
	containerID = regexp.MustCompile(`^[0-9a-f]{12,64}$`)
	podUID      = regexp.MustCompile(`^([0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$`)
)

// identifier reads a value that must have a form, so that a rule that could never match
// is refused.
func identifier(f *yamlfile.Form, name string, v *string, form *regexp.Regexp, wanted string) {
	s, ok := f.Scalar(name, wanted)
	switch s = strings.ToLower(s); {
	case !ok:
	case !form.MatchString(s):
		f.Wrong(name, "%q is not %s", yamlfile.Clip(s), wanted)
	default:
		*v = s
	}
}

func pattern(f *yamlfile.Form, name string) (string, bool) {
	s, ok := f.Scalar(name, "a pattern")
	switch {
	case !ok:
		return "", false
	case s == "" || len(s) > maxPattern:
		f.Wrong(name, "a pattern has from 1 to %d bytes", maxPattern)
		return "", false
	}
	return s, true
}

package config

import (
	"math"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/giveway/giveway/internal/yamlfile"
	"github.com/giveway/giveway/sched"
	"go.yaml.in/yaml/v3"
)

// Rule says what a program that matches is to have.
type Rule struct {
	Class    *sched.Class
	Weight   uint32 // zero: nothing is said of it
	Priority *int32

	line  int
	match match
}

// Line is where the rule stands in its file.
func (r *Rule) Line() int { return r.line }

// Apply returns a with what the rule says.
func (r *Rule) Apply(a sched.Attr) sched.Attr {
	if r.Class != nil {
		a.Class = *r.Class
	}
	if r.Weight != 0 {
		a.Weight = r.Weight
	}
	if r.Priority != nil {
		a.Priority = *r.Priority
	}
	return a
}

// Program is what rules look at. It comes from the program itself, which may
// call itself what it likes: a rule is a convenience, and no lock.
type Program struct {
	User      string
	UID       uint32
	Command   []string // its name and its arguments
	Cgroup    string   // path, as in /proc/PID/cgroup
	Container string
	Pod       string
}

// Match returns the first rule that p matches.
func (c *Config) Match(p Program) (*Rule, bool) {
	for i := range c.Rules {
		if c.Rules[i].match.takes(&p) {
			return &c.Rules[i], true
		}
	}
	return nil, false
}

// match is what must be so of a program: all that is not nil.
type match struct {
	user, command, search, cgroup, container, pod *regexp.Regexp
}

// everything reports whether there is nothing a program could fail.
func (m *match) everything() bool { return *m == match{} }

// mostCommand bounds how much of a command line is looked at.
const mostCommand = 4096

func (m *match) takes(p *Program) bool {
	is := func(re *regexp.Regexp, s string) bool { return re == nil || re.MatchString(s) }
	return (is(m.user, p.User) || is(m.user, strconv.FormatUint(uint64(p.UID), 10))) &&
		is(m.cgroup, p.Cgroup) && is(m.container, p.Container) && is(m.pod, p.Pod) && m.takesCommand(p.Command)
}

// takesCommand: a pattern is for the program's name alone, or for the whole line,
// with or without the folder of the program.
func (m *match) takesCommand(words []string) bool {
	if m.command == nil && m.search == nil {
		return true
	}
	line := strings.Join(words, " ")
	line = line[:min(len(line), mostCommand)]
	if m.search != nil && !m.search.MatchString(line) {
		return false
	}
	if m.command == nil || m.command.MatchString(line) {
		return true
	}
	if len(words) == 0 {
		return false
	}
	name := path.Base(words[0])
	short := strings.Join(append([]string{name}, words[1:]...), " ")
	return m.command.MatchString(name) || m.command.MatchString(short[:min(len(short), mostCommand)])
}

// glob turns a pattern of * (any text, none included) and ? (any letter) into an
// expression for the whole of a text.
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
	return regexp.MustCompile(b.String()) // what is quoted always compiles
}

// classNames are in the order of sched.Class.
var classNames = []string{
	sched.Standard.String(), sched.Online.String(), sched.Batch.String(), sched.Idle.String(),
}

func rules(r *yamlfile.Reader, f *yamlfile.Form, c *Config) {
	f.List("rules", mostRules, func(n *yaml.Node, path string) {
		rf := r.Form(n, path)
		rule := Rule{line: n.Line}
		before := r.Mistakes()
		rf.Need("match", "{user: alice, command: 'python* *train*'}, or match: {} for every program")
		if n := rf.Get("match"); n != nil {
			readMatch(r.Form(n, rf.Path("match")), &rule.match)
		}
		if i, ok := rf.Word("class", "class", classNames); ok {
			class := sched.Class(i)
			rule.Class = &class
		}
		if n, ok := rf.Integer("weight", 1, 10_000); ok {
			rule.Weight = uint32(n)
		}
		if n, ok := rf.Integer("priority", math.MinInt32, math.MaxInt32); ok {
			priority := int32(n)
			rule.Priority = &priority
		}
		rf.Done("a rule")
		if r.Mistakes() > before {
			return
		}
		if !rf.Has("class") && !rf.Has("weight") && !rf.Has("priority") {
			r.Wrong(n, path, "it says nothing of what matches; add class, weight or priority")
		}
		if last := len(c.Rules) - 1; last >= 0 && c.Rules[last].match.everything() {
			r.Wrong(n, path, "no program comes here: the rule above, on line %d, matches every one", c.Rules[last].line)
		}
		c.Rules = append(c.Rules, rule)
	})
}

// mostPattern bounds the length of a pattern.
const mostPattern = 1000

func readMatch(f *yamlfile.Form, m *match) {
	for _, field := range []struct {
		name string
		re   **regexp.Regexp
	}{
		{"user", &m.user},
		{"command", &m.command},
		{"cgroup", &m.cgroup},
		{"container", &m.container},
		{"pod", &m.pod},
	} {
		if s, ok := pattern(f, field.name); ok {
			*field.re = glob(s)
		}
	}
	if s, ok := pattern(f, "command_regexp"); ok {
		re, err := regexp.Compile(s)
		if err != nil {
			f.Wrong("command_regexp", "%v", err)
		}
		m.search = re
	}
	f.Done("a match")
}

func pattern(f *yamlfile.Form, name string) (string, bool) {
	s, ok := f.Scalar(name, "a pattern")
	switch {
	case !ok:
		return "", false
	case s == "" || len(s) > mostPattern:
		f.Wrong(name, "a pattern has from 1 to %d letters", mostPattern)
		return "", false
	}
	return s, true
}

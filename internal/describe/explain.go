package describe

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/format"
)

// Facts is what is known of a process that is to be explained.
type Facts struct {
	Process *api.Process
	All     []api.Process // to name other processes
	Devices []api.Device
	Policy  api.Policy      // in force
	Shares  map[Key]float64 // of Period; nil: not measured
	Period  time.Duration   // the last one, of which Shares are
	Delays  *api.Delays     // nil: the daemon does not say
	Orders  *api.Record     // its entries of kind order; nil: the daemon does not say
	Now     time.Time
	UID     int // of the caller
}

// Section is a part of an explanation.
type Section struct {
	Head  string   `json:"head"` // empty: the first part
	Lines []string `json:"lines"`
}

// Explain says why a process runs or waits, since when, its attributes and what would
// change it.
func Explain(f Facts) []Section {
	first := Section{Lines: f.whatItIs()}
	var changes []string
	switch p := f.Process; {
	case p.Member != nil && p.Member.Lost:
		first.Lines = append(first.Lines, fmt.Sprintf("Its MPS server, process %d, has exited. It can use the device no more, and has to be started again.", p.Member.Server))
	case p.Member != nil && len(p.Queues) == 0:
		first.Lines = append(first.Lines, f.memberLine())
		changes = []string{fmt.Sprintf("giveway explain %d: why the MPS server runs or waits", p.Member.Server)}
	case len(p.Queues) == 0:
		first.Lines = append(first.Lines, "It has no queue on a device that Giveway can see.")
	default:
		for _, q := range p.Queues {
			lines, change := f.queueLines(q)
			first.Lines = append(first.Lines, lines...)
			changes = include(changes, change...)
		}
	}
	first.Lines = append(first.Lines, f.shareLine()...)
	if r := f.Process.Requests; r != nil && r.Marked {
		first.Lines = append(first.Lines, fmt.Sprintf("Its requests are marked through the API; open: %d. Others do not count until 10 s after the last mark.", r.Open))
	}
	sections := []Section{first}
	for _, s := range []Section{
		{"Late entry", f.lateLines()},
		{"Waits in the last 10 s", f.waitLines()},
		{"Attributes", f.attrLines()},
		{"Orders, the last first", f.orderLines()},
		{"What would change it", changes},
	} {
		if len(s.Lines) > 0 {
			sections = append(sections, s)
		}
	}
	return sections
}

// whatItIs names the process.
func (f *Facts) whatItIs() []string {
	p := f.Process
	line := fmt.Sprintf("Process %s of user %s is of class %s", f.name(p.PID), cmp.Or(format.Text(p.User, 40), strconv.Itoa(int(p.UID))), p.Class())
	if p.Attrs.Source(attr.Class) == attr.FromDefault {
		line += ", the default"
	}
	switch c := Container(p); {
	case p.ContainerNames.Pod != "":
		line += fmt.Sprintf(", in container %s of pod %s/%s", format.Text(p.Name, 64), format.Text(p.Namespace, 64), format.Text(c, 64))
	case c != "":
		line += ", in container " + format.Text(c, 20)
	}
	lines := []string{line + "."}
	if f.UID != 0 && f.UID != int(p.UID) && p.Command == "" {
		lines = append(lines, "It belongs to another user: its command, its requests and orders for it are not shown to you.")
	}
	return lines
}

// queueLines says why a queue runs or waits and since when, and returns what would change it.
func (f *Facts) queueLines(q api.Queue) (lines, changes []string) {
	verb := "waits"
	if q.MayRun {
		verb = "runs"
	}
	if q.Reason == "" && q.DecidedFor == 0 {
		return []string{fmt.Sprintf("On %s it is %s. The daemon gives no reason.", f.device(q), format.Text(q.State, 40))}, nil
	}
	why, known := byName(q.Reason)
	here := situation{f.Process, f.policyOf(&q), f.UID}
	line := fmt.Sprintf("On %s it %s", f.device(q), verb)
	if q.DecidedFor > 0 {
		line += fmt.Sprintf(", for %s, since %s", LongTime(q.DecidedFor), f.Now.Add(-q.DecidedFor).Format("15:04:05.000"))
	}
	switch {
	case known:
		line += ": " + here.because(why) + "."
	case q.Reason != "":
		line += ": " + format.Text(q.Reason, 80) + "."
	default:
		line += fmt.Sprintf(". Policy %s gives no reason.", here.policyName())
	}
	lines = append(lines, line)
	switch {
	case q.MayRun && (q.State == "stopped" || q.State == "starting"):
		lines = append(lines, "The decision is new: it is still being started.")
	case !q.MayRun && q.State == "running":
		lines = append(lines, "The decision is new, or the last attempt to stop it did not succeed: it still runs.")
	case !q.MayRun && q.State == "stopping":
		lines = append(lines, "It is being stopped.")
	}
	if q.OnFloor {
		lines = append(lines, "The policy gives it less than the floor, the share that every process is guaranteed; it gets the floor.")
	}
	if q.WaitsBehind != 0 {
		lines = append(lines, f.inversionLine(q.WaitsBehind))
	}
	if !q.Ready && q.MayRun {
		lines = append(lines, "It has no work for the device now, as far as is known.")
	}
	return lines, here.changes(why)
}

// inversionLine names the process that the queue waits behind in a priority inversion.
func (f *Facts) inversionLine(holder uint64) string {
	who := "another process"
	for i := range f.All {
		if slices.ContainsFunc(f.All[i].Queues, func(q api.Queue) bool { return q.ID == holder }) {
			who = "process " + f.name(f.All[i].PID)
		}
	}
	return "Priority inversion: " + who + " is to be stopped, and has the device nevertheless. 'giveway log' shows what is done about it."
}

func (f *Facts) memberLine() string {
	m := f.Process.Member
	what := "an MPS server"
	if m.Pool != "" {
		what = "pool " + format.Text(m.Pool, 40)
	}
	if f.Process.Attrs.Bool(attr.Paused) {
		return fmt.Sprintf("It is a member of %s, process %d, and it is paused: it launches nothing until it is resumed.", what, m.Server)
	}
	return fmt.Sprintf("It is a member of %s: process %d has the queue in which its work runs, and is scheduled for all members.", what, m.Server)
}

func (f *Facts) shareLine() []string {
	share, known := Share(f.Shares, f.Process)
	if !known {
		return nil
	}
	return []string{fmt.Sprintf("It has had %s of the device time in the last %s, and %s in all.", format.Percent(share), format.Duration(f.Period), f.served())}
}

func (f *Facts) served() string {
	var sum time.Duration
	for _, q := range f.Process.Queues {
		sum += q.Served
	}
	if f.Process.Member != nil && len(f.Process.Queues) == 0 {
		sum = f.Process.Member.Served
	}
	return LongTime(sum)
}

// mostWaits is for how many holders waits are listed one by one.
const mostWaits = 6

// OwnDelays returns for what the process waited in the last 10 s, the longest first.
func (f *Facts) OwnDelays() []api.Delay {
	own := []api.Delay{}
	if f.Delays == nil {
		return own
	}
	for _, d := range f.Delays.Delays {
		if d.PID == f.Process.PID && d.Last10 > 0 {
			own = append(own, d)
		}
	}
	slices.SortStableFunc(own, func(a, b api.Delay) int { return cmp.Compare(b.Last10, a.Last10) })
	return own
}

// waitLines says for what the process waited.
func (f *Facts) waitLines() (lines []string) {
	rest := time.Duration(0)
	for _, d := range f.OwnDelays() {
		if len(lines) == mostWaits {
			rest += d.Last10
			continue
		}
		about := ""
		if d.Estimated {
			about = "about "
		}
		lines = append(lines, fmt.Sprintf("%s%s %s", about, format.Duration(d.Last10), f.holder(d.Holder)))
	}
	if rest > 0 {
		lines = append(lines, format.Duration(rest)+" for others")
	}
	return lines
}

func (f *Facts) holder(h api.Holder) string {
	switch h.Kind {
	case "process":
		if h.PID == 0 {
			return "while a process of another user had the device"
		}
		return "while process " + f.name(h.PID) + " had the device"
	case "switch":
		return "while the device switched between contexts"
	case "idle":
		return "while no process had the device"
	case "others":
		return "while other processes had the device"
	}
	return "for " + format.Text(h.Kind, 40)
}

// sourceText says where an attribute is from.
var sourceText = map[attr.Source]string{
	attr.FromProcess: "from the process itself",
	attr.FromBackend: "by the backend",
	attr.FromRule:    "by a rule of the configuration",
	attr.FromRun:     "by 'giveway run'",
	attr.FromHint:    "by a hint",
	attr.FromSet:     "by 'giveway set'",
}

// attrLines lists the attributes that were given and are not their default, with their source.
func (f *Facts) attrLines() (lines []string) {
	p := f.Process
	for _, id := range p.Attrs.Given().IDs() {
		from := p.Attrs.Source(id)
		row := id.Row()
		if from == attr.FromDefault || p.Attrs.Int(id) == row.Default && id != attr.Class {
			continue
		}
		line := row.Name + " " + row.Format(p.Attrs.Int(id)) + ", " + cmp.Or(sourceText[from], "by "+from.String())
		if id == attr.Paused && from == attr.FromSet {
			line = "paused, by 'giveway pause'"
		}
		if i := slices.IndexFunc(p.Ignored, func(i api.Ignored) bool { return i.Name == row.Name }); i >= 0 {
			effect, reason := p.Ignored[i].Effect()
			line += "; it " + effect + ": " + format.Text(reason, 300)
		}
		lines = append(lines, line)
	}
	return lines
}

// mostOrders is how many orders are listed, and mostForAll how many of those may be for all
// processes.
const (
	mostOrders = 8
	mostForAll = 2
)

// changesAll reports whether an order changes how all processes are scheduled.
func changesAll(o *api.Order) bool {
	return !o.Refused && slices.Contains([]string{"policy", "restore", "config"}, o.Name)
}

// OwnOrders returns the orders that changed the process or how all are scheduled, the last
// first.
func (f *Facts) OwnOrders() []api.Entry {
	own := []api.Entry{}
	if f.Orders == nil {
		return own
	}
	for _, e := range slices.Backward(f.Orders.Entries) {
		if e.Order != nil && (e.PID == f.Process.PID || changesAll(e.Order)) {
			own = append(own, e)
		}
	}
	return own
}

// orderLines lists the last orders that changed the process: those for it, and the last few of
// those for all.
func (f *Facts) orderLines() (lines []string) {
	left, forAll := 0, 0
	for _, e := range f.OwnOrders() {
		if e.PID != f.Process.PID {
			forAll++
		}
		if len(lines) == mostOrders || e.PID != f.Process.PID && forAll > mostForAll {
			left++
			continue
		}
		lines = append(lines, f.Orders.Began.Add(e.At).Local().Format("2006-01-02 15:04:05")+" "+f.orderText(e.Order))
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", left))
	}
	return lines
}

// orderText describes an order in one line.
func (f *Facts) orderText(o *api.Order) string {
	var b strings.Builder
	name, pauses := pauseName(o)
	b.WriteString(format.Text(name, 20))
	if o.UID != nil {
		b.WriteString(" by " + f.user(*o.UID))
	}
	var by []string
	if o.Command != "" {
		by = append(by, format.Text(o.Command, 40))
	}
	if o.PID != 0 {
		by = append(by, fmt.Sprintf("pid %d", o.PID))
	}
	if o.Address != "" {
		by = append(by, "from "+format.Text(o.Address, 60))
	}
	if len(by) > 0 {
		b.WriteString(" (" + strings.Join(by, ", ") + ")")
	}
	if o.To != "" && !pauses {
		b.WriteString(": " + format.Text(o.To, 200))
	}
	switch {
	case unchanged(o):
		b.WriteString(", unchanged")
	case o.To != "" && o.From != "" && !pauses:
		b.WriteString(", before " + format.Text(o.From, 200))
	}
	if o.Tree {
		b.WriteString(", with its descendants")
	}
	if o.Refused {
		b.WriteString("; refused")
		if o.Reason != "" {
			b.WriteString(": " + format.Text(o.Reason, 200))
		}
	}
	return b.String()
}

// pauseName returns the name of an order, and whether it is all of the order: pause and resume
// set an attribute.
func pauseName(o *api.Order) (name string, all bool) {
	switch {
	case o.Name == "set" && o.To == "paused=true":
		return "pause", true
	case o.Name == "set" && o.To == "paused=false":
		return "resume", true
	}
	return o.Name, false
}

// unchanged reports whether an order set what was set before.
func unchanged(o *api.Order) bool { return !o.Refused && o.To != "" && o.From == o.To }

// user returns the name of a user, if it is known.
func (f *Facts) user(uid int64) string {
	if uid == 0 {
		return "root"
	}
	for i := range f.All {
		if p := &f.All[i]; int64(p.UID) == uid && p.User != "" {
			return format.Text(p.User, 40)
		}
	}
	return fmt.Sprintf("uid %d", uid)
}

// name returns the pid of a process and its command, if it is known.
func (f *Facts) name(pid int) string {
	for i := range f.All {
		if p := &f.All[i]; p.PID == pid && p.Command != "" {
			return fmt.Sprintf("%d (%s)", pid, format.Text(p.Command, 60))
		}
	}
	return strconv.Itoa(pid)
}

func (f *Facts) device(q api.Queue) string {
	for _, d := range f.Devices {
		if d.ID == q.Device && q.Index >= 0 {
			return fmt.Sprintf("GPU %d (%s)", q.Index, format.Text(d.Model, 40))
		}
	}
	if q.Index >= 0 {
		return fmt.Sprintf("GPU %d", q.Index)
	}
	return "a device of " + format.Text(q.Device, 40)
}

// Write returns an explanation as text in lines of at most width columns.
func Write(sections []Section, width int) string {
	var b strings.Builder
	for i, s := range sections {
		indent := ""
		if s.Head != "" {
			if i > 0 {
				b.WriteString("\n")
			}
			b.WriteString(format.Text(s.Head+":", width) + "\n")
			indent = "  "
		}
		for _, line := range s.Lines {
			wrap(&b, line, indent, width)
		}
	}
	return b.String()
}

// wrap writes a sentence in lines of at most width columns, the first of them indented and
// the others more so. A word that is longer than a line is cut.
func wrap(b *strings.Builder, text, indent string, width int) {
	line, begin := indent, indent
	if indent != "" {
		indent += "  "
	}
	for word := range strings.FieldsSeq(text) {
		if line != begin && format.Width(line)+1+format.Width(word) > width {
			b.WriteString(line + "\n")
			line, begin = indent, indent
		}
		if line != begin {
			line += " "
		}
		line += format.Text(word, max(width-format.Width(line), 1))
	}
	b.WriteString(line + "\n")
}

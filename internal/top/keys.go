package top

import (
	"fmt"
	"slices"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/format"
)

// Effect is what a key asks for besides a change of the screen.
type Effect struct {
	Quit    bool
	Order   *Order
	Explain bool // the selected process
}

// Order is a change of a process that the user has confirmed.
type Order struct {
	PID   int
	Attr  attr.ID
	Value int64
	Text  string // what it does
}

// Change returns the order as the daemon takes it.
func (o *Order) Change() api.Change { return api.Change{Values: o.Attr.Of(o.Value)} }

// Key is a key that was pressed: its name, such as q, up or ctrl+c, and the text that it
// types, if it types any.
type Key struct{ Name, Text string }

// Press handles a key.
func (s *State) Press(k Key) Effect {
	if k.Name == "ctrl+c" {
		return Effect{Quit: true}
	}
	s.message = ""
	switch s.mode {
	case inHelp, inExplain:
		return s.pressText(k)
	case inFilter:
		s.pressFilter(k)
	case inClass:
		s.pressClass(k)
	case inWeight:
		s.pressWeight(k)
	case inConfirm:
		return s.pressConfirm(k)
	default:
		return s.pressTable(k)
	}
	return Effect{}
}

// Paste adds text to what is typed. Elsewhere it does nothing.
func (s *State) Paste(text string) {
	if s.mode == inFilter || s.mode == inWeight {
		s.Press(Key{Text: text})
	}
}

// pressTable handles a key above the table.
func (s *State) pressTable(k Key) Effect {
	if s.move(k.Name) {
		return Effect{}
	}
	switch k.Name {
	case "q":
		return Effect{Quit: true}
	case "?", "h", "f1":
		s.mode, s.scroll = inHelp, 0
	case "/":
		s.mode, s.input = inFilter, s.filter
	case "esc":
		s.filter = ""
		s.arrange()
	case ">", ".", "right":
		s.sortBy(s.sort + 1)
	case "<", ",", "left":
		s.sortBy(s.sort - 1 + len(sorts))
	case "r":
		s.reverse = !s.reverse
		s.arrange()
	case "t":
		s.flat = !s.flat
		s.arrange()
	case "space":
		s.frozen = !s.frozen
	case "enter", "e":
		return Effect{Explain: s.choose() != nil}
	default:
		s.begin(k.Name)
	}
	return Effect{}
}

// choose returns the selected process, or nil. From now on the selection stays on it, wherever
// its row moves: without this the first row would be selected, which changes every second.
func (s *State) choose() *api.Process {
	p := s.process()
	s.chosen = s.chosen || p != nil
	return p
}

// begin begins an order for the selected process.
func (s *State) begin(key string) {
	if !slices.Contains([]string{"c", "w", "p", "u"}, key) {
		return
	}
	p := s.choose()
	if p == nil {
		return
	}
	switch key {
	case "c":
		s.mode = inClass
	case "w":
		s.mode, s.input = inWeight, ""
	case "p":
		s.confirm(attr.Paused, 1, "pause "+processName(p))
	case "u":
		s.confirm(attr.Paused, 0, "resume "+processName(p))
	}
	s.order.PID = p.PID // also if the selection changes meanwhile
}

func processName(p *api.Process) string {
	if p.Command == "" {
		return fmt.Sprint(p.PID)
	}
	return fmt.Sprintf("%d (%s)", p.PID, format.Text(p.Command, 30))
}

// nameOf returns the name of the process that an order is for.
func (s *State) nameOf(pid int) string {
	for i := range s.last.Processes {
		if p := &s.last.Processes[i]; p.PID == pid {
			return processName(p)
		}
	}
	return fmt.Sprint(pid)
}

// confirm asks whether an order is to be given.
func (s *State) confirm(id attr.ID, value int64, text string) {
	s.mode, s.order.Attr, s.order.Value, s.order.Text = inConfirm, id, value, text
}

func (s *State) sortBy(i int) {
	s.sort = i % len(sorts)
	s.say("sorted by " + sorts[s.sort].name)
	s.arrange()
}

// move moves the selection. It returns false if the key does something else.
func (s *State) move(key string) bool {
	page := max(s.tableHeight()-1, 1)
	by, known := map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -page, "ctrl+b": -page, "pgdown": page, "ctrl+f": page,
		"home": -len(s.rows), "g": -len(s.rows), "end": len(s.rows), "G": len(s.rows),
	}[key]
	if !known || len(s.rows) == 0 {
		return known
	}
	i := min(max(s.cursor()+by, 0), len(s.rows)-1)
	s.selected, s.chosen = s.rows[i].process.PID, true
	return true
}

// pressText handles a key above a page of text.
func (s *State) pressText(k Key) Effect {
	switch k.Name {
	case "up", "k":
		s.scroll = max(s.scroll-1, 0)
	case "down", "j":
		s.scroll++
	case "pgup":
		s.scroll = max(s.scroll-s.height+2, 0)
	case "pgdown", "space":
		s.scroll += max(s.height-2, 1)
	case "q", "esc", "enter", "?", "e", "h", "f1":
		s.mode = inTable
	}
	return Effect{}
}

// pressFilter handles a key while a filter is typed. The table follows it.
func (s *State) pressFilter(k Key) {
	switch k.Name {
	case "esc":
		s.filter, s.mode = "", inTable
	case "enter":
		s.mode = inTable
	default:
		s.input = edited(s.input, k)
		s.filter = s.input
	}
	s.arrange()
}

// mostInput is how many bytes can be typed.
const mostInput = 60

// edited returns text after a key.
func edited(text string, k Key) string {
	switch {
	case k.Name == "backspace" && text != "":
		letters := []rune(text)
		return string(letters[:len(letters)-1])
	case k.Name == "ctrl+u":
		return ""
	case len(text)+len(k.Text) > mostInput:
		return text
	}
	return text + format.Printable(k.Text)
}

// classKeys are the keys that choose a class, in the order of the classes.
func classKeys() (keys, prompt []string) {
	for _, c := range attr.ClassNames() {
		keys = append(keys, c[:1])
		prompt = append(prompt, "["+c[:1]+"]"+c[1:])
	}
	return keys, prompt
}

func (s *State) pressClass(k Key) {
	s.mode = inTable
	keys, _ := classKeys()
	for i, key := range keys {
		if name := attr.ClassNames()[i]; k.Name == key {
			value, err := attr.Class.Row().Parse(name)
			if err != nil {
				s.say(err.Error())
				return
			}
			s.confirm(attr.Class, value, fmt.Sprintf("set class of %s to %s", s.nameOf(s.order.PID), name))
		}
	}
}

func (s *State) pressWeight(k Key) {
	switch k.Name {
	case "esc":
		s.mode = inTable
	case "enter":
		s.mode = inTable
		value, err := attr.Weight.Row().Parse(strings.TrimSpace(s.input))
		if err != nil {
			s.say(err.Error())
			return
		}
		s.confirm(attr.Weight, value, fmt.Sprintf("set weight of %s to %d", s.nameOf(s.order.PID), value))
	default:
		s.input = edited(s.input, k)
	}
}

func (s *State) pressConfirm(k Key) Effect {
	s.mode = inTable
	if k.Name != "y" && k.Name != "Y" {
		s.say("not done: " + s.order.Text)
		return Effect{}
	}
	o := s.order
	return Effect{Order: &o}
}

// prompt returns the line at the bottom of the screen.
func (s *State) prompt() string {
	switch s.mode {
	case inFilter:
		return "filter: " + s.input + "_   (Enter keeps it, Esc clears it)"
	case inClass:
		_, names := classKeys()
		choice := strings.Join(names, " ")
		return s.withName("class of ", ": "+choice+"   (Esc: leave it)", choice)
	case inWeight:
		return s.withName("weight of ", ": "+s.input+"_   ("+attr.Weight.Row().Takes()+")", "weight: "+s.input+"_")
	case inConfirm:
		return s.order.Text + "? y/n"
	}
	return s.message
}

// withName returns a prompt with the name of the process between two texts, as much of it as
// there is room for; short if there is room for little.
func (s *State) withName(before, after, short string) string {
	const least = 8 // most pids
	room := s.width - format.Width(before) - format.Width(after)
	if room < least {
		return short
	}
	return before + format.Text(s.nameOf(s.order.PID), room) + after
}

// helpText lists the keys and what the columns mean.
const helpText = `Keys
  q, Ctrl-C, Ctrl-Z     quit; suspend
  up, down, PgUp, PgDn  select a process; also j, k, Home, End
  Enter                 explain the selected process
  c, w                  set its class, its weight; asks before it does
  p, u                  pause it, resume it; asks before it does
  /                     show only processes with a text; Esc shows all
  <, >, r               sort by another figure; reverse the order
  t                     members of a pool below their server, or not
  Space                 freeze the screen, or go on

Columns
  NOW, MINUTE           share of device time, in the last second and minute,
                        or since top or the daemon was started
  TREND                 share in the last minute; the newest is on the right
  WHY                   why it runs or waits; Enter says more
  P99, MET              of its last requests; those within the SLO, in a minute
  WAITS FOR             what it waited for most in the last 10 s, and how much
  HOLDS UP              the process that waited most for it
  SLICE                 time slice; in brackets if it is as found
  pressure              part of the last 10 s in which a process waited, and in
                        which one waited and none had the GPU (full)
`

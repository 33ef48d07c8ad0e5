package top

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/describe"
)

const (
	firstPeriod = 300 * time.Millisecond // after the first snapshot: a second one gives the first shares
	period      = time.Second            // between two snapshots
	patience    = 5 * time.Second        // for the daemon's answer
)

// Run shows the screen on a terminal until the user quits.
func Run(ctx context.Context, source Source, look Look, in io.Reader, out io.Writer) error {
	p := &program{ctx: ctx, source: source, reader: NewReader(source), state: New(look, 80, 24)}
	_, err := tea.NewProgram(p, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out)).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// Once returns the screen as text, after a moment in which shares are measured.
func Once(ctx context.Context, source Source, look Look, width int) (string, error) {
	reader, state := NewReader(source), New(look, width, 24)
	for i := range 2 {
		if i > 0 {
			time.Sleep(period)
		}
		s, err := reader.Read(ctx)
		if err != nil {
			return "", err
		}
		state.Take(s)
	}
	return state.Text(width), nil
}

// program connects the state to a terminal and a daemon.
type program struct {
	ctx    context.Context
	source Source
	reader *Reader
	state  *State
	taken  int // snapshots
}

// Messages: what happened besides keys.
type (
	tick     struct{}
	snapshot struct {
		Snapshot
		err error
	}
	outcome struct {
		order   Order
		process api.Process
		err     error
	}
	facts struct {
		describe.Facts
		err error
	}
)

func (p *program) Init() tea.Cmd { return p.read }

// read takes a snapshot. Only one is taken at a time: the next is asked for when it is here.
func (p *program) read() tea.Msg {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	s, err := p.reader.Read(ctx)
	return snapshot{s, err}
}

func (p *program) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		p.state.Resize(msg.Width, msg.Height)
		return p, tea.ClearScreen // what the terminal made of the old lines is not known
	case tea.KeyPressMsg:
		if msg.String() == "ctrl+z" {
			return p, tea.Suspend
		}
		return p, p.carryOut(p.state.Press(Key{msg.String(), msg.Text}))
	case tea.PasteMsg: // it is text, even if its letters are keys
		p.state.Paste(msg.Content)
	case tick:
		return p, p.read
	case snapshot:
		wait := period
		if msg.err != nil {
			p.state.Lost(msg.err)
		} else {
			p.state.Take(msg.Snapshot)
			if p.taken++; p.taken == 1 {
				wait = firstPeriod
			}
		}
		return p, tea.Tick(wait, func(time.Time) tea.Msg { return tick{} })
	case outcome:
		p.state.Done(msg.order, msg.process, msg.err)
	case facts:
		p.state.Explained(msg.Facts, msg.err)
	}
	return p, nil
}

// carryOut does what a key asked for.
func (p *program) carryOut(e Effect) tea.Cmd {
	switch {
	case e.Quit:
		return tea.Quit
	case e.Order != nil:
		return func() tea.Msg {
			ctx, cancel := context.WithTimeout(p.ctx, patience)
			defer cancel()
			changed, err := p.source.Change(ctx, e.Order.PID, e.Order.Change())
			return outcome{*e.Order, changed, err}
		}
	case e.Explain:
		return p.explain
	}
	return nil
}

// explain reads the orders, which snapshots do not have.
func (p *program) explain() tea.Msg {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	orders, err := Orders(ctx, p.source)
	return facts{describe.Facts{Orders: orders, Now: time.Now(), UID: os.Geteuid()}, err}
}

func (p *program) View() tea.View {
	v := tea.NewView(p.state.View())
	v.AltScreen = true
	return v
}

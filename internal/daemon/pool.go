package daemon

import (
	"strings"

	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// poolMode returns whether the program of a run is to be in a pool, by the rule for it and
// by the attributes of the run. The program has not been started: its command is what
// follows -- in that of its 'giveway run'. Pools are for class batch.
func (d *Daemon) poolMode(run *proc.Process, v attr.Values, conf *config.Config) attr.Mode {
	program := *run
	if _, command, ok := strings.Cut(run.Command, " -- "); ok {
		program.Command = command
	}
	layers := attr.Layers{attr.FromRun: v}
	var limits attr.Limits
	layers[attr.FromRule], limits = d.administer(&program, conf)
	merged, _ := layers.Within(&limits)
	if merged.Class() != sched.Batch {
		return attr.ModeOff
	}
	return attr.Mode(merged.Int(attr.Pool))
}

package bench

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// Command is a Controller that runs the giveway program, as a user would.
type Command struct{ Path string }

// Set runs giveway set.
func (c Command) Set(pid int, class string, weight int) error {
	return c.run("set", strconv.Itoa(pid), "--class", class, "--weight", strconv.Itoa(weight))
}

// Pause runs giveway pause.
func (c Command) Pause(pid int) error { return c.run("pause", strconv.Itoa(pid)) }

// Resume runs giveway resume.
func (c Command) Resume(pid int) error { return c.run("resume", strconv.Itoa(pid)) }

// Close does nothing: each call was complete.
func (c Command) Close() error { return nil }

func (c Command) run(args ...string) error {
	out, err := exec.Command(c.Path, args...).CombinedOutput()
	if said := strings.TrimSpace(string(out)); err != nil && said != "" {
		err = errors.New(said)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", c.Path, args[0], err)
	}
	return nil
}

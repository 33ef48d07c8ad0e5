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

func (c Command) run(args ...string) error {
	out, err := exec.Command(c.Path, args...).CombinedOutput()
	if text := strings.TrimSpace(string(out)); err != nil && text != "" {
		err = errors.New(text)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", c.Path, args[0], err)
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/giveway/giveway/internal/bench"
)

// run measures cases and writes the table to out.
func run(args []string, _ io.Reader, out io.Writer) error {
	set := flag.NewFlagSet("run", flag.ContinueOnError)
	var config bench.Config
	cases := set.String("cases", "", "`names` of cases or groups, with commas; all if empty")
	giveway := set.String("giveway", "", "`path` of the giveway program, with its daemon running; without, only alone and native are measured")
	asJSON := set.String("json", "", "`file` for the result with all samples, written after each case")
	page := set.String("html", "", "`file` for a page with plots")
	set.DurationVar(&config.Length, "length", 5*time.Second, "`time` of each measurement")
	set.IntVar(&config.Device, "device", 0, "`number` of the GPU, as CUDA counts")
	set.StringVar(&config.Python, "python", "python3", "`program` for the PyTorch cases")
	if err := parse(set, args); err != nil {
		return err
	}
	chosen, err := bench.Select(words(*cases))
	if err != nil {
		return usageError{err}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config.Client = []string{self}
	config.Log = os.Stderr
	if *giveway != "" {
		config.Controller = bench.Command{Path: *giveway}
	}
	var saving error
	config.Save = func(r *bench.Result) {
		saving = errors.Join(write(*asJSON, r.WriteJSON), write(*page, r.WriteHTML))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	result, err := bench.Run(ctx, config, chosen)
	return errors.Join(err, saving, result.WriteTable(out))
}

func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// write makes a file, unless it has no name.
func write(path string, content func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(content(f), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

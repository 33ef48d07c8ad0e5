package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/bench"
)

// compareStops measures how long it takes to stop and start the KFD queues of a batch
// process: one by one and in one call of the stock driver, and in one call of the patched
// driver. No daemon may run, because it would stop the same queues.
func compareStops(set *flag.FlagSet, args []string, _ io.Reader, out io.Writer) error {
	config := bench.StopsConfig{Log: os.Stderr, Ways: stopWays}
	registerGPU(set, &config.Runtime, &config.Device)
	queues := set.String("queues", "1,2,10,64", "`numbers` of queues of the batch process")
	set.IntVar(&config.Rounds, "rounds", 200, "`number` of stops for each way and number of queues")
	asJSON := set.String("json", "", "write the result to this `file`")
	page := set.String("html", "", "write a page with plots to this `file`")
	if err := parse(set, args); err != nil {
		return err
	}
	for _, field := range splitNames(*queues) {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > 128 {
			return usageError{fmt.Errorf("--queues %s: want numbers from 1 to 128", *queues)}
		}
		config.Queues = append(config.Queues, n)
	}
	if config.Rounds < 1 || runtimes[config.Runtime] == nil {
		return usageError{fmt.Errorf("--rounds %d, --runtime %s: want at least one round, and cuda, hip or auto", config.Rounds, config.Runtime)}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The batch process exits with the thread that started it, and the threads of debug
	// sessions end.
	runtime.LockOSThread()
	config.Client = []string{self}
	lab, err := amd.OpenLab(amd.Config{}, "")
	if err != nil {
		return fmt.Errorf("open KFD: %w", err)
	}
	defer lab.Close()
	ctx, stop := interruptible()
	defer stop()
	result, err := bench.CompareStops(ctx, config)
	result.Driver = lab.Driver()
	return errors.Join(err, write(*asJSON, result.WriteJSON), write(*page, result.WriteHTML), result.WriteTable(out))
}

// stopWays are the ways that are compared. The first is the traditional one.
var stopWays = []bench.StopWay{
	{Name: "one by one", Open: func(pid int) (bench.Stopper, error) {
		q, err := attach("debug", pid)
		return oneByOne{q}, err
	}},
	{Name: bench.StockWay, Open: func(pid int) (bench.Stopper, error) { return attach("debug", pid) }},
	{Name: bench.BatchWay, Open: func(pid int) (bench.Stopper, error) { return attach("batch", pid) }},
}

// attached is the queues of a process, and the open driver.
type attached struct {
	*amd.LabQueues
	lab *amd.Lab
}

func attach(method string, pid int) (*attached, error) {
	lab, err := amd.OpenLab(amd.Config{}, method)
	if err != nil {
		return nil, err
	}
	q, err := lab.Attach(pid)
	if err != nil {
		return nil, errors.Join(err, lab.Close())
	}
	return &attached{q, lab}, nil
}

// Close implements bench.Stopper.
func (a *attached) Close() error { return errors.Join(a.LabQueues.Close(), a.lab.Close()) }

// oneByOne makes a call for each queue.
type oneByOne struct{ *attached }

// Stop implements bench.Stopper.
func (o oneByOne) Stop() error { return o.StopEach() }

// Start implements bench.Stopper.
func (o oneByOne) Start() error { return o.StartEach() }

// soak runs an online process and batch processes that come and go, under the daemon.
func soak(set *flag.FlagSet, args []string, _ io.Reader, out io.Writer) error {
	config := bench.SoakConfig{Log: os.Stderr}
	registerGPU(set, &config.Runtime, &config.Device)
	giveway := set.String("giveway", "giveway", "`path` of the giveway program; its daemon must run")
	set.DurationVar(&config.Length, "for", time.Hour, "`length` of the soak")
	set.DurationVar(&config.Round, "round", 5*time.Second, "`length` of one measurement of the online process")
	set.IntVar(&config.Batch, "batch", 4, "`number` of batch processes")
	set.IntVar(&config.Streams, "streams", 8, "`number` of streams of each")
	set.Uint64Var(&config.Seed, "seed", 1, "`seed` of what happens")
	asJSON := set.String("json", "", "write the result to this `file`")
	if err := parse(set, args); err != nil {
		return err
	}
	if runtimes[config.Runtime] == nil || config.Batch < 1 || config.Streams < 1 || config.Streams > 128 || config.Length <= 0 || config.Round <= 0 {
		return usageError{errors.New("want --runtime cuda, hip or auto, at least one batch process, 1 to 128 streams, and lengths above 0")}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config.Client, config.Giveway, config.RunWith = []string{self}, bench.Program(*giveway), []string{*giveway, "run"}
	if lab, err := amd.OpenLab(amd.Config{}, ""); err == nil { // without KFD the use of slots is unknown
		defer lab.Close()
		config.Slots = lab.Slots
	}
	ctx, stop := interruptible()
	defer stop()
	result, err := bench.Soak(ctx, config)
	err = errors.Join(err, write(*asJSON, result.WriteJSON), result.WriteTable(out))
	if n := len(result.Errors) + result.Unanswered; n > 0 {
		err = errors.Join(err, fmt.Errorf("%d errors and unanswered requests", n))
	}
	return err
}

func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

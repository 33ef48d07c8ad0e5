package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/queue"
	"github.com/giveway/giveway/sched"
)

// podProgram is the name of the test's own program in the pods' image.
const podProgram = "pod"

// containerEnv is the variable in which a pod's program finds the name of its container.
const containerEnv = "TEST_CONTAINER"

// seen is what a pod's program reports of what it sees.
type seen struct {
	Socket, Preload string
	LibraryThere    bool   // the shim can be read
	Write           string // the error of writing beside it
	Processes       []seenProcess
	Took            time.Duration // from the program's start until the daemon listed it
	Error           string        // of listing the processes
	Raise           string        // the error of asking for class online
	Other           string        // the error of asking for a container to be registered
	Containers      string        // the error of listing all containers
}

// seenProcess is a process in the daemon's list.
type seenProcess struct {
	Pod, Container, Class string
	Weight                int64
}

// podMain is the program of the test's pods.
func podMain(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	mode := "pause" // as the first container of each pod
	if len(args) > 0 {
		mode = args[0]
	}
	switch mode {
	case "pause":
	case "report":
		report(ctx, true)
	case "ask":
		report(ctx, false)
	case "flood":
		flood(ctx)
	case "work":
		work(ctx)
	default:
		fmt.Println("there is no mode", mode)
		return 2
	}
	<-ctx.Done()
	return 0
}

// report prints what a program sees of Giveway when it starts. If known, it waits until the
// daemon lists the program.
func report(ctx context.Context, known bool) {
	s := seen{Socket: os.Getenv("GIVEWAY_SOCKET"), Preload: os.Getenv("LD_PRELOAD")}
	if s.Socket != "" {
		ctx, stop := context.WithTimeout(ctx, 30*time.Second)
		defer stop()
		s.ask(ctx, known)
	}
	_, err := os.Stat("/opt/giveway/libgiveway.so")
	s.LibraryThere = err == nil
	s.Write = text(os.WriteFile(filepath.Join("/opt/giveway", "x"), nil, 0o600))
	data, err := json.Marshal(s)
	fmt.Println(string(data), err)
}

// ask runs a command in a queue, so that the daemon knows the process, and asks the daemon for
// what a pod may and may not have.
func (s *seen) ask(ctx context.Context, known bool) {
	began := time.Now()
	q := queue.New()
	c, err := q.Submit(func() {})
	if err == nil {
		err = c.Wait(ctx)
	}
	daemon := client.New(s.Socket)
	defer daemon.Close()
	all, listed := daemon.Processes(ctx)
	// A process without a name is in a container that is not registered: it is this one, and
	// waiting for its name would hide that the registration comes too late.
	self := func(p api.Process) bool { return p.Name == os.Getenv(containerEnv) || p.Name == "" }
	for i := 1; known && !slices.ContainsFunc(all, self) && ctx.Err() == nil; i++ {
		time.Sleep(time.Millisecond) // the daemon finds new processes in the background
		if i%100 == 0 {
			_, err = q.Submit(func() {}) // a queue that could not connect tries again with the next command
		}
		all, listed = daemon.Processes(ctx)
	}
	s.Took = time.Since(began)
	s.Error = text(errors.Join(err, listed))
	pid := os.Getpid() // of no process of the pod, unless the daemon lists one
	for _, p := range all {
		s.Processes = append(s.Processes, seenProcess{p.ContainerNames.Pod, p.Name, p.Attrs.Class().String(), p.Attrs.Int(attr.Weight)})
		pid = p.PID
	}
	_, err = daemon.Change(ctx, pid, api.Change{Values: attr.Class.Of(int64(sched.Online))})
	s.Raise = text(err)
	s.Other = text(daemon.Register(ctx, api.Container{ID: strings.Repeat("a", 64)}))
	_, err = daemon.Containers(ctx)
	s.Containers = text(err)
}

// flood opens connections to the control socket for 2 s, prints how many, and goes on until the
// pod ends. It asks on each connection and reads no answer.
func flood(ctx context.Context) {
	var open []net.Conn // so that none is closed
	began, printed := time.Now(), false
	for ctx.Err() == nil {
		c, err := net.DialTimeout("unix", os.Getenv("GIVEWAY_SOCKET"), 100*time.Millisecond)
		if err == nil {
			open = append(open, c)
			_, _ = io.WriteString(c, strings.Repeat("GET /v1/processes HTTP/1.1\r\nHost: giveway\r\n\r\n", 100)) // the daemon may have closed it
		} else {
			time.Sleep(time.Millisecond)
		}
		if !printed && time.Since(began) > 2*time.Second {
			fmt.Println(len(open))
			printed = true
		}
		if len(open) >= 2000 {
			for _, c := range open {
				_ = c.Close() // and again
			}
			open = open[:0]
		}
	}
}

// work keeps a queue busy with commands of 2 ms until the pod ends, and prints how many are
// done every 100 ms.
func work(ctx context.Context) {
	q := queue.New()
	q.SetBound(1)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		c, err := q.Submit(func() { time.Sleep(2 * time.Millisecond) })
		if err != nil || c.Wait(ctx) != nil {
			return
		}
		select {
		case <-tick.C:
			fmt.Println(q.Counts().Completed)
		default:
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

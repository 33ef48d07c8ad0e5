package daemon

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/shim/pageabi"
)

// Attacks that ask for long replies, and attacks that make the daemon keep something.

// floodLists lists processes in a loop.
func floodLists(ctx context.Context, socket string) string {
	c := client.New(socket)
	return repeat(ctx, 20, func() error { _, err := c.Processes(ctx); return err })
}

// floodMetrics reads metrics in a loop.
func floodMetrics(ctx context.Context, socket string) string {
	var d net.Dialer
	c := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) },
	}}
	return repeat(ctx, 20, func() error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://giveway/metrics", nil)
		if err != nil {
			return err
		}
		answer, err := c.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if _, err := io.Copy(io.Discard, answer.Body); err == nil && answer.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", answer.StatusCode)
		}
		return err
	})
}

// readNothing asks for lists, the record and streams, and reads none of the replies.
func readNothing(ctx context.Context, socket string) string {
	var n atomic.Int64
	paths := []string{"/v1/processes", "/v1/record", "/v1/record/stream", "/metrics"}
	return repeat(ctx, 60, func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		if u, ok := conn.(*net.UnixConn); ok {
			_ = u.SetReadBuffer(4096)
		}
		request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: x\r\n\r\n", paths[n.Add(1)%int64(len(paths))])
		for range 100 { // on one connection; the daemon reads the next request when a reply was written
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := io.WriteString(conn, request); err != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
		return nil
	})
}

// forgeCounters writes anything into a page, again and again: counters that jump forward and back,
// times in the future, requests that never began.
func forgeCounters(ctx context.Context, socket string) string {
	_, p, err := connectShim(socket, strconv.Itoa(pageabi.Version), "opencl")
	if err != nil {
		return err.Error()
	}
	r := rand.New(rand.NewPCG(1, 2))
	n := 0
	for ; ctx.Err() == nil; n++ {
		switch r.IntN(4) {
		case 0:
			p.Scribble(func() byte { return byte(r.Uint32()) })
		case 1:
			p.Page.Launched.Store(r.Uint64() >> r.IntN(64))
		case 2:
			p.Page.Completed.Store(r.Uint64() >> r.IntN(64))
		case 3:
			p.Page.Requests.Store(r.Uint64() >> r.IntN(64))
			p.Page.OpenRequests.Store(r.Uint32())
		}
		pageabi.Ring(p.Doorbell)
		time.Sleep(100 * time.Microsecond)
	}
	return fmt.Sprint(n, " times")
}

// fillJournal sets attributes of many processes of the user, always others, of which the journal keeps
// each.
func fillJournal(ctx context.Context, socket string) string {
	const sleepers = 200
	pids := make([]int, 0, sleepers)
	for range sleepers {
		cmd := exec.Command("sleep", "100000")
		if err := cmd.Start(); err != nil {
			break
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		pids = append(pids, cmd.Process.Pid)
	}
	c := client.New(socket)
	var n atomic.Int64
	return repeat(ctx, 30, func() error {
		i := n.Add(1)
		v := attr.Must(fmt.Sprintf("class=batch deadline=%dms slo=%dms share=%d%% bound=%d", 1+i%1000, 1+i%777, 1+i%100, 1+i%8))
		_, err := c.Change(ctx, pids[i%int64(len(pids))], api.Change{Values: v, Tree: true})
		return err
	})
}

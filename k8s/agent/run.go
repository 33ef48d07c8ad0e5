package agent

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/stub"
)

// Reconnecting to the runtime.
const (
	minPause = 250 * time.Millisecond
	maxPause = 5 * time.Second
)

// Run connects to the runtime's socket, and again whenever the connection ends, until ctx is
// done. The runtime ends it when it is restarted, and when the plugin has not answered in
// time.
func (p *Plugin) Run(ctx context.Context, socket string) error {
	var ended sync.WaitGroup
	defer ended.Wait()
	p.pods = newPods()
	ended.Go(func() { p.Registrar.Run(ctx) })
	if p.Watch != nil {
		ended.Go(func() { p.applyChanges(ctx) })
		ended.Go(func() { p.Watch.run(ctx, p.pods) })
	}
	pause := minPause
	for {
		began := time.Now()
		err := p.connect(ctx, socket)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > maxPause {
			pause = minPause
		}
		p.Log.Warn("connection to the container runtime ended; connecting again", "socket", socket, "error", err, "in", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

func (p *Plugin) connect(ctx context.Context, socket string) error {
	dial := p.dial
	if dial == nil {
		dial = func(path string) (net.Conn, error) { return net.Dial("unix", path) }
	}
	s, err := stub.New(p, stub.WithPluginName("giveway"), stub.WithPluginIdx("50"), stub.WithSocketPath(socket), stub.WithDialer(dial),
		stub.WithOnClose(func() {})) // without it the stub ends the process
	if err != nil {
		return fmt.Errorf("make the plugin: %w", err)
	}
	return s.Run(ctx)
}

package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/dashboard"
	"github.com/giveway/giveway/internal/format"
	"github.com/spf13/cobra"
)

func newDashboard() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Show in a browser which process holds the GPU, which ones wait for it, and why",
		Long: `Serve a page that shows which process holds each GPU, which ones wait for which others,
how long requests take, and what was decided and why. It runs until Ctrl-C, in your own process and with your own
rights; the daemon needs no network.

It prints two addresses. With the one that has the token, a browser shows what you may see
and changes what you may change. The other one shows no commands and changes nothing. Both work
only on this machine. From another one, use 'ssh -L 8047:127.0.0.1:8047 HOST'.`,
		Example: `  giveway dashboard
  giveway dashboard --listen 127.0.0.1:9000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return serveDashboard(ctx, cmd, listen)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8047", "loopback address and port; port 0: any that is free")
	return cmd
}

func serveDashboard(ctx context.Context, cmd *cobra.Command, listen string) error {
	address, err := netip.ParseAddrPort(listen)
	if err != nil || !address.Addr().IsLoopback() {
		return usageError{fmt.Errorf("--listen %s: want a loopback address with a port, such as 127.0.0.1:8047, because the page has your rights; for another machine use ssh -L", format.Text(listen, 60))}
	}
	daemon := client.New("")
	defer daemon.Close()
	if _, err := daemon.Status(ctx); err != nil {
		return err
	}
	l, err := net.Listen("tcp", address.String())
	if err != nil {
		return fmt.Errorf("serve the dashboard: %w; choose another port with --listen", err)
	}
	token := rand.Text()
	fmt.Fprintf(cmd.OutOrStdout(), "With your rights: http://%s/#token=%s\nTo look only:     http://%s/#look\nCtrl-C ends it.\n", l.Addr(), token, l.Addr())
	server := &http.Server{Handler: dashboard.Handler(daemon, token), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(&fewConnections{Listener: l, room: make(chan struct{}, maxBrowsers)}); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the dashboard: %w", err)
	}
	return nil
}

// maxBrowsers is how many connections the dashboard has at a time. A browser uses up to six.
const maxBrowsers = 48

// fewConnections accepts no more connections than there is room for.
type fewConnections struct {
	net.Listener
	room chan struct{}
}

func (l *fewConnections) Accept() (net.Conn, error) {
	l.room <- struct{}{}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &countedConn{Conn: c, leave: sync.OnceFunc(func() { <-l.room })}, nil
}

// countedConn makes room for another connection when it is closed.
type countedConn struct {
	net.Conn
	leave func()
}

func (c *countedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

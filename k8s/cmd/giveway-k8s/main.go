// Command giveway-k8s is the part of Giveway that runs on the nodes of a Kubernetes cluster
// beside the daemon. docs/KUBERNETES.md describes it.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/k8s/agent"
	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "giveway-k8s:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "giveway-k8s", Short: "Give pods a class inside the GPU",
		SilenceErrors: true, SilenceUsage: true,
	}
	root.AddCommand(agentCommand(), installCommand())
	return root
}

func agentCommand() *cobra.Command {
	var runtime, daemon, node string
	var watch bool
	var plugin agent.Plugin
	c := &cobra.Command{
		Use: "agent", Args: cobra.NoArgs,
		Short: "Tell the node's daemon about the containers of its pods",
		Long: `Tell the node's daemon about the containers of its pods, before their first process is
started: names, and the attributes in the pods' annotations (giveway.dev/class, weight, slo,
pool, shim). The agent is a plugin of the container runtime's Node Resource Interface (NRI). It
needs the two sockets, and no capability and no token.

With --watch it also follows later changes of the annotations at the API server. For that it
needs the token of a service account that may watch pods.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			d := client.New(daemon)
			defer d.Close()
			plugin.Registrar, plugin.Log = agent.NewRegistrar(d, log), log
			if watch {
				var err error
				if plugin.Watch, err = agent.WatchInCluster(node, log); err != nil {
					return err
				}
			}
			return plugin.Run(cmd.Context(), runtime)
		},
	}
	f := c.Flags()
	f.StringVar(&runtime, "nri-socket", "/run/nri/nri.sock", "the container runtime's NRI socket")
	f.StringVar(&daemon, "agent-socket", "/run/giveway-agent/agent.sock", "the daemon's agent_socket")
	f.StringVar(&plugin.Injection.Library, "library", "", "folder on the host with libgiveway.so, for pods with giveway.dev/shim; none without it")
	f.StringVar(&plugin.Injection.Socket, "control", "", "folder on the host with the daemon's control socket, for the same pods")
	f.StringVar(&plugin.Injection.Pool, "pool", "", "pipe folder of a pool on the host, for pods with giveway.dev/pool; none without it")
	f.BoolVar(&watch, "watch", false, "follow changes of the annotations of running pods at the API server")
	f.StringVar(&node, "node", os.Getenv("NODE_NAME"), "name of the node, for --watch; NODE_NAME by default")
	f.BoolVar(&plugin.TrustClaims, "trust-claims", false, "accept class online from the configuration of resource claims: only if pods and images cannot set GIVEWAY_GPU_PRIORITY")
	return c
}

// Command etcd is etcd, built from its module, for the cluster in which the agent is tested.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }

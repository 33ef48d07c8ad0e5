// Package cluster tests Giveway in a real Kubernetes with one node: etcd, API server,
// controller manager, scheduler, kubelet, containerd and runc, with the manifests of
// deploy/kubernetes. `make test-k8s` builds all of them into out/k8s and runs the tests, which
// need root. Without those programs the tests are skipped.
//
//	TestCluster ── clone ──> init ── mounts ──> TestCluster again ──> the node, then the cases
//	on the machine           pid 1              in the namespaces
//
// Everything runs in mount, network, pid, UTS and IPC namespaces of its own, in which /etc,
// /opt, /var and /run are copies and the kernel's settings that the kubelet writes are files.
// It ends with the first process of the pid namespace. Only cgroups are shared with the
// machine; the test removes those that it made, and fails if anything is left.
package cluster

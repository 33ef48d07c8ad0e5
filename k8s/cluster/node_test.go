package cluster

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	nodeName = "n1"
	nodeIP   = "10.99.0.1"
	token    = "test-token"
	server   = "https://127.0.0.1"

	// serviceIP is the address of the service "kubernetes". There is no kube-proxy, so the API
	// server has that address and port itself.
	serviceIP = "10.97.0.1"

	// patience bounds every wait: long, because the machine may be busy.
	patience = 3 * time.Minute
)

// node is the one machine of the cluster with its programs.
type node struct {
	t       *testing.T
	bin     string // folder of the programs
	run     string // folder of logs
	state   string // folder of files that end with the namespaces
	cgroup  string
	began   time.Time
	running map[string]*exec.Cmd
	create  []time.Duration // how long containerd took to create containers with Giveway, sorted
}

func newNode(t *testing.T) *node {
	out := os.Getenv(outKey)
	n := &node{
		t: t, bin: filepath.Join(out, "bin"), run: filepath.Join(out, "run"), state: filepath.Join(out, "run", "state"),
		cgroup: os.Getenv(cgroupKey), began: time.Now(), running: map[string]*exec.Cmd{},
	}
	if err := os.Setenv("PATH", n.bin+":"+os.Getenv("PATH")); err != nil {
		t.Fatal(err)
	}
	n.setUpNetwork()
	n.makeCgroups()
	n.writeFiles()
	return n
}

// setUpNetwork gives the node an address. The default route leads nowhere; the kubelet looks
// for one.
func (n *node) setUpNetwork() {
	for _, args := range []string{
		"link set lo up", "link add br0 type bridge", "addr add " + nodeIP + "/24 dev br0", "link set br0 up", "route add default via 10.99.0.254 dev br0",
		"addr add " + serviceIP + "/32 dev lo",
	} {
		n.command("ip", strings.Fields(args)...)
	}
}

// makeCgroups makes the cgroup of all pods in each hierarchy.
func (n *node) makeCgroups() {
	procs, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range procs {
		dir := filepath.Join(filepath.Dir(p), n.cgroup)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // empty at first, and no process may enter then
			if value, err := os.ReadFile(filepath.Join(filepath.Dir(p), file)); err == nil {
				n.write(filepath.Join(dir, file), string(value))
			}
		}
	}
}

func (n *node) writeFiles() {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		n.t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		n.t.Fatal(err)
	}
	for name, text := range map[string]string{
		"/etc/hosts":                  "127.0.0.1 localhost\n" + nodeIP + " " + nodeName + "\n",
		"/etc/resolv.conf":            "",
		"/etc/cni/net.d/10.conflist":  networkConfig,
		n.path("containerd.toml"):     fmt.Sprintf(containerdConfig, filepath.Join(n.bin, "cni"), filepath.Join(n.bin, "runc")),
		n.path("kubelet.yaml"):        fmt.Sprintf(kubeletConfig, n.cgroup),
		n.path("kubeconfig"):          fmt.Sprintf(kubeconfig, server, token),
		n.path("audit.yaml"):          auditPolicy,
		n.path("tokens.csv"):          token + ",admin,admin,system:masters\n",
		n.path("service-account.key"): string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		n.path("service-account.pub"): string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
	} {
		n.write(name, text)
	}
}

func (n *node) path(name string) string { return filepath.Join(n.state, name) }

func (n *node) write(name, text string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// command runs a program to its end.
func (n *node) command(name string, args ...string) {
	n.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// commandLine returns the command of a program of the node.
func (n *node) commandLine(name string) []string {
	switch name {
	case "containerd":
		return []string{"containerd", "-c", n.path("containerd.toml")}
	case "etcd":
		client, peer := "http://127.0.0.1:2379", "http://127.0.0.1:2380"
		return []string{"etcd", "--data-dir", n.path("etcd"), "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer, "--unsafe-no-fsync"}
	case "kube-apiserver":
		return []string{
			"hyper", name, "--etcd-servers=http://127.0.0.1:2379", "--cert-dir=" + n.path("certs"), "--secure-port=443", "--bind-address=0.0.0.0",
			"--advertise-address=" + nodeIP, "--token-auth-file=" + n.path("tokens.csv"), "--authorization-mode=Node,RBAC", "--service-account-issuer=https://cluster.test",
			"--service-account-key-file=" + n.path("service-account.pub"), "--service-account-signing-key-file=" + n.path("service-account.key"),
			"--service-cluster-ip-range=10.97.0.0/24", "--allow-privileged",
			"--audit-policy-file=" + n.path("audit.yaml"), "--audit-log-path=" + n.path("audit.log"),
		}
	case "kube-controller-manager":
		return []string{
			"hyper", name, "--kubeconfig=" + n.path("kubeconfig"), "--use-service-account-credentials=false", "--leader-elect=false", "--controllers=*,-nodeipam",
			"--service-account-private-key-file=" + n.path("service-account.key"), "--root-ca-file=" + n.path("certs/apiserver.crt"),
		}
	case "kube-scheduler":
		return []string{"hyper", name, "--kubeconfig=" + n.path("kubeconfig"), "--leader-elect=false"}
	case "kubelet":
		return []string{
			"hyper", name, "--config=" + n.path("kubelet.yaml"), "--kubeconfig=" + n.path("kubeconfig"), "--hostname-override=" + nodeName,
			"--node-ip=" + nodeIP, "--cert-dir=" + n.path("kubelet"),
		}
	}
	n.t.Fatalf("there is no program %s", name)
	return nil
}

// start starts a program of the node; its log is added to run/NAME.log.
func (n *node) start(name string) {
	n.t.Helper()
	log, err := os.OpenFile(filepath.Join(n.run, name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	line := n.commandLine(name)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, n.state
	if err := cmd.Start(); err != nil {
		n.t.Fatalf("start %s: %v", name, err)
	}
	n.running[name] = cmd
}

// stop ends a program of the node by a signal and waits for its end.
func (n *node) stop(name string, signal syscall.Signal) {
	n.t.Helper()
	cmd := n.running[name]
	if err := cmd.Process.Signal(signal); err != nil {
		n.t.Fatalf("stop %s: %v", name, err)
	}
	_ = cmd.Wait() // its status is that of the signal
	delete(n.running, name)
}

// boot starts all programs and returns when the node is ready for pods.
func (n *node) boot() {
	n.t.Helper()
	n.start("containerd")
	n.start("etcd")
	n.start("kube-apiserver")
	n.wait("containerd", func() bool { return exec.Command("ctr", "version").Run() == nil })
	if _, err := os.Stat(n.path("images.tar")); err != nil { // not after a reboot
		n.importImages()
	}
	n.wait("API server", func() bool { return request("GET", "/readyz", "", nil).body == "ok" })
	n.start("kube-controller-manager")
	n.start("kube-scheduler")
	n.start("kubelet")
	n.wait("node", func() bool { return n.ready() })
	n.wait("service account", func() bool { return request("GET", "/api/v1/namespaces/default/serviceaccounts/default", "", nil).ok() })
}

// ready reports whether the kubelet has said since the last start that pods can be started.
func (n *node) ready() bool {
	var status struct {
		Status struct {
			Conditions []struct {
				Type, Status      string
				LastHeartbeatTime time.Time
			}
		}
	}
	request("GET", "/api/v1/nodes/"+nodeName, "", nil).decode(&status)
	for _, c := range status.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True" && !c.LastHeartbeatTime.Before(n.began.Truncate(time.Second))
		}
	}
	return false
}

// wait waits for a condition and logs how long that took.
func (n *node) wait(what string, done func() bool) {
	n.t.Helper()
	waitFor(n.t, what, done)
	n.t.Logf("%-16s ready after %4.1f s", what, time.Since(n.began).Seconds())
}

// waitFor waits until done returns true.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain for: %s", patience, what)
		}
	}
}

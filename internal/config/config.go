// Package config reads the daemon's configuration file: the policy, the scheduler's
// limits, where to listen, rules that give attributes to processes, and limits on what
// users may ask for. docs/CONFIG.md describes the format.
//
// A file is accepted as a whole or refused as a whole, with the line, the field and the
// allowed values. This package applies nothing: the daemon does.
package config

import (
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/extpolicy"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/safepath"
	"github.com/giveway/giveway/internal/yamlfile"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// Path is the configuration file of the machine's daemon.
const Path = "/etc/giveway/giveway.yaml"

// Limits on a file.
const (
	maxBytes   = 1 << 20
	maxRules   = 1000
	maxDevices = 256
	maxSeries  = 10000
)

// defaultTCP is the address of "tcp: true".
const defaultTCP = "127.0.0.1:50000"

// Config is the content of a file. Its zero value is valid except for the policy.
type Config struct {
	Policy    api.Policy   // its name and parameters are valid
	Devices   []api.Policy // of single devices: Device is an ID or an index
	Sched     sched.Config
	Socket    string // empty: the default
	Agent     string // the socket on which an agent registers containers; empty: none
	Pods      string // another control socket, for containers to have mounted; empty: none
	TCP       string // host:port; empty: none
	TokenFile string // of the token with which a client may do everything
	ReadToken string // the same, of the token with which it may only read
	Metrics   metrics.Labels
	NoTrace   bool    // do not read the hardware's context-switch trace
	NoNVIDIA  bool    // do not use NVIDIA's driver
	NoAMD     bool    // do not use AMD's driver
	AMDSlots  int     // hardware slots of AMD GPUs that are kept free for online processes; zero: as many as they have queues; negative: none
	Rules     []Rule  // the first that matches applies
	Limits    []Limit // the first that matches a user applies
}

// atStart lists the fields of a file that only take effect when the daemon starts. Policies,
// rules and limits are applied without a restart.
var atStart = []struct {
	name string
	of   func(*Config) any
}{
	{"floor", func(c *Config) any { return c.Sched.Floor }},
	{"floor_turn", func(c *Config) any { return c.Sched.FloorTurn }},
	{"stall_limit", func(c *Config) any { return c.Sched.StallLimit }},
	{"inversion_limit", func(c *Config) any { return c.Sched.InversionLimit }},
	{"trace", func(c *Config) any { return c.NoTrace }},
	{"nvidia", func(c *Config) any { return c.NoNVIDIA }},
	{"amd", func(c *Config) any { return c.NoAMD }},
	{"amd_online_slots", func(c *Config) any { return c.AMDSlots }},
	{"socket", func(c *Config) any { return c.Socket }},
	{"agent_socket", func(c *Config) any { return c.Agent }},
	{"pod_socket", func(c *Config) any { return c.Pods }},
	{"tcp", func(c *Config) any { return c.TCP }},
	{"token_file", func(c *Config) any { return c.TokenFile }},
	{"read_token_file", func(c *Config) any { return c.ReadToken }},
	{"metrics", func(c *Config) any { return c.Metrics }},
}

// NeedRestart returns the fields that differ in next and for which a running daemon with
// this configuration must be restarted.
func (c *Config) NeedRestart(next *Config) (fields []string) {
	for _, f := range atStart {
		if !reflect.DeepEqual(f.of(c), f.of(next)) {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// DevicePolicy returns the policy that the file has for one device, if it has one.
func (c *Config) DevicePolicy(id string, index int) (p api.Policy, ok bool) {
	for _, d := range c.Devices {
		if d.Device == id || d.Device == strconv.Itoa(index) {
			d.Device = id
			return d, true
		}
	}
	return api.Policy{}, false
}

// Default is the configuration without a file.
func Default() Config { return Config{Policy: api.Policy{Name: policy.Names()[0]}} }

// Load reads a file. It refuses one that a user other than root and the daemon's own can
// change: the file says which commands the daemon starts.
func Load(path string) (Config, error) {
	data, err := safepath.ReadFile(path, maxBytes, false)
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(path, data)
}

// Parse reads the text of a file; file is its name in errors. An empty file is the
// default configuration.
func Parse(file string, data []byte) (Config, error) {
	f, err := yamlfile.Read(file, "configuration", data, maxBytes)
	if err != nil {
		return Config{}, err
	}
	c := Default()
	if f == nil {
		return c, nil
	}
	readPolicy(f, &c.Policy, append(policy.Names(), policy.ExternalName))
	devices(f, &c)
	scheduler(f, &c.Sched)
	absolute(f, "socket", &c.Socket)
	absolute(f, "agent_socket", &c.Agent)
	absolute(f, "pod_socket", &c.Pods)
	listenTCP(f, &c)
	metricLabels(f, &c.Metrics)
	c.NoTrace, c.NoNVIDIA, c.NoAMD = !on(f, "trace"), !on(f, "nvidia"), !on(f, "amd")
	amdSlots(f, &c.AMDSlots)
	f.Renamed("eyes", "write trace")
	rules(f, &c)
	limits(f, &c)
	f.Done("the configuration")
	if err := f.Err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// readPolicy reads a policy's name, or a mapping of its name and parameters.
func readPolicy(f *yamlfile.Form, p *api.Policy, names []string) {
	name, params, ok := f.Choice("policy", "policy", names, checkParam)
	if ok {
		p.Name, p.Params = name, nil
	}
	if len(params) > 0 {
		p.Params = params
	}
	if name == policy.ExternalName {
		if _, err := extpolicy.Parse(params); err != nil {
			f.Wrong("policy", "%v", err)
		}
	}
}

// checkParam checks one parameter of a policy. Those of the external policy are checked
// together.
func checkParam(name, param, value string) error {
	if name == policy.ExternalName {
		return nil
	}
	_, err := policy.Choose(name, map[string]string{param: value})
	return err
}

func devices(f *yamlfile.Form, c *Config) {
	known := map[string]bool{}
	f.List("devices", "", maxDevices, func(df *yamlfile.Form) {
		var d api.Policy
		df.IdentOrIndex("device", &d.Device)
		df.Need("device", "0")
		readPolicy(df, &d, policy.Names())
		df.Need("policy", policy.Names()[0])
		df.Done("a device")
		if known[d.Device] && d.Device != "" {
			df.Wrong("device", "device %s is listed twice", d.Device)
		}
		known[d.Device] = true
		if choice, err := policy.Choose(d.Name, d.Params); err == nil && choice.AllDevices {
			df.Wrong("policy", "policy %s schedules all devices together, so one device cannot have it alone", d.Name)
		}
		c.Devices = append(c.Devices, d)
	})
}

func scheduler(f *yamlfile.Form, s *sched.Config) {
	floor := -1.0
	f.Ratio("floor", &floor, 0, 0.25)
	switch {
	case floor == 0: // the scheduler takes zero for the default, a negative number for none
		s.Floor = -1
	case floor > 0:
		s.Floor = floor
	}
	f.Duration("floor_turn", &s.FloorTurn, time.Millisecond, time.Minute)
	f.Duration("stall_limit", &s.StallLimit, 10*time.Millisecond, time.Hour)
	inversions := time.Duration(-1)
	f.Duration("inversion_limit", &inversions, 0, time.Minute)
	switch { // as with the floor
	case inversions == 0:
		s.InversionLimit = -1
	case inversions > 0:
		s.InversionLimit = max(inversions, time.Millisecond)
	}
}

// on reads a boolean that is true by default.
func on(f *yamlfile.Form, name string) bool {
	yes := true
	f.Boolean(name, &yes)
	return yes
}

// maxSlots is more than the hardware slots of any GPU.
const maxSlots = 1024

// amdSlots reads a number of hardware slots, or auto.
func amdSlots(f *yamlfile.Form, v *int) {
	s, ok := f.Scalar("amd_online_slots", "a number of hardware slots, or auto")
	if !ok || s == "auto" {
		return
	}
	n, err := strconv.Atoi(s)
	switch {
	case err != nil || n < 0 || n > maxSlots:
		f.Wrong("amd_online_slots", "%q is neither a number from 0 to %d nor auto", yamlfile.Clip(s), maxSlots)
	case n == 0:
		*v = -1
	default:
		*v = n
	}
}

// absolute reads an absolute path.
func absolute(f *yamlfile.Form, name string, v *string) {
	s, ok := f.String(name, "the path of a file")
	switch {
	case !ok:
	case !filepath.IsAbs(s) || len(s) > 4096:
		f.Wrong(name, "%q is not a path that begins with /", yamlfile.Clip(s))
	case strings.HasSuffix(name, "socket") && len(s) > 107:
		f.Wrong(name, "the path has %d bytes; the kernel allows 107", len(s))
	default:
		*v = s
	}
}

// listenTCP reads an address, or true for the default one.
func listenTCP(f *yamlfile.Form, c *Config) {
	s, ok := f.Scalar("tcp", "an address such as "+defaultTCP+", or true for that")
	absolute(f, "token_file", &c.TokenFile)
	absolute(f, "read_token_file", &c.ReadToken)
	if !ok {
		return
	}
	switch s {
	case "true":
		c.TCP = defaultTCP
	case "false":
	default:
		_, port, err := net.SplitHostPort(s)
		if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 0 || n > 65535 {
			f.Wrong("tcp", "%q is neither an address such as %s, nor true for that, nor false", yamlfile.Clip(s), defaultTCP)
			return
		}
		c.TCP = s
	}
	if c.TCP != "" && !f.Has("token_file") && !f.Has("read_token_file") {
		f.Wrong("tcp", "it needs token_file, or read_token_file for clients that only read; for example token_file: /etc/giveway/token")
	}
}

// metricLabels reads which labels the metrics of processes have.
func metricLabels(f *yamlfile.Form, l *metrics.Labels) {
	mf := f.Form("metrics")
	if mf == nil {
		return
	}
	for _, label := range []struct {
		name   string
		wanted *bool
	}{{"pid", &l.PID}, {"user", &l.User}, {"container", &l.Container}, {"pod", &l.Pod}, {"namespace", &l.Namespace}} {
		mf.Boolean(label.name, label.wanted)
	}
	mf.Count("series", &l.Series, 1, maxSeries)
	mf.Done("metrics")
}

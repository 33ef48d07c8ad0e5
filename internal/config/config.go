// Package config reads the daemon's configuration file: the policy, what an
// administrator may set of the scheduler, where to listen, and rules that say
// which programs are of which class. docs/CONFIG.md describes the format.
//
// A file is taken as a whole or refused as a whole, with the line, the field and
// what is allowed there. Nothing is applied here: that is the daemon's.
package config

import (
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/giveway/giveway/internal/yamlfile"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
	"go.yaml.in/yaml/v3"
)

// Path is where the machine's daemon looks for its file.
const Path = "/etc/giveway/giveway.yaml"

// What a file may hold at most.
const (
	mostBytes   = 1 << 20
	mostRules   = 1000
	mostDevices = 256
)

// defaultTCP is where to listen if a file says only that TCP is wanted.
const defaultTCP = "127.0.0.1:50000"

// Config is what a file says. The zero value, but for the policy, is good.
type Config struct {
	Policy    Policy
	Devices   []DevicePolicy
	Sched     sched.Config
	Socket    string // empty: the default
	TCP       string // host:port; empty: none
	TokenFile string
	Blind     bool   // the hardware's record of who ran is not kept
	NoNVIDIA  bool   // NVIDIA's driver is left alone
	NoAMD     bool   // so is AMD's
	Rules     []Rule // the first that matches counts
}

// Policy is a policy that there is, with parameters that it takes.
type Policy struct {
	Name   string
	Params map[string]string
}

// Choice is the policy as the scheduler takes it.
func (p Policy) Choice() (sched.PolicyChoice, error) { return policy.Choose(p.Name, p.Params) }

// DevicePolicy is the policy of one device.
type DevicePolicy struct {
	Device string // its ID, or its index
	Policy Policy
}

// PolicyFor is the policy that a device is to have, and whether it is its own.
func (c *Config) PolicyFor(id string, index int) (p Policy, own bool) {
	for _, d := range c.Devices {
		if d.Device == id || d.Device == strconv.Itoa(index) {
			return d.Policy, true
		}
	}
	return c.Policy, false
}

// Default is the configuration without a file. Where nobody has asked for an SLO, slo
// is giveway.
func Default() Config { return Config{Policy: Policy{Name: "slo"}} }

// Load reads a file.
func Load(path string) (Config, error) {
	data, err := yamlfile.ReadFile(path, mostBytes)
	if err != nil {
		return Config{}, err
	}
	return Parse(path, data)
}

// Parse reads what a file says; file is its name in errors. An empty one is the
// default.
func Parse(file string, data []byte) (Config, error) {
	r, root, err := yamlfile.Read(file, "configuration", data, mostBytes)
	if err != nil {
		return Config{}, err
	}
	c := Default()
	if root == nil || root.Tag == "!!null" {
		return c, nil
	}
	f := r.Form(root, "")
	readPolicy(r, f, &c.Policy)
	devices(r, f, &c)
	scheduler(f, &c.Sched)
	absolute(f, "socket", &c.Socket)
	listenTCP(f, &c)
	c.Blind, c.NoNVIDIA, c.NoAMD = !on(f, "eyes"), !on(f, "nvidia"), !on(f, "amd")
	rules(r, f, &c)
	f.Done("the configuration")
	if err := r.Err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// readPolicy reads a policy's name, or its name and parameters side by side.
func readPolicy(r *yamlfile.Reader, f *yamlfile.Form, p *Policy) {
	n := f.Get("policy")
	switch {
	case n == nil:
	case n.Kind == yaml.MappingNode:
		pf := r.Form(n, f.Path("policy"))
		pf.Need("name", policy.Names()[0])
		if i, ok := pf.Word("name", "policy", policy.Names()); ok {
			*p = Policy{Name: policy.Names()[i]}
			params(pf, p)
		}
	default:
		if i, ok := f.Word("policy", "policy", policy.Names()); ok {
			*p = Policy{Name: policy.Names()[i]}
		}
	}
}

// params tries every parameter for itself, so that each error has its line.
func params(f *yamlfile.Form, p *Policy) {
	for _, key := range f.Keys() {
		if key.Value == "name" {
			continue
		}
		value, ok := f.Scalar(key.Value, "a value")
		if !ok {
			continue
		}
		if _, err := policy.Choose(p.Name, map[string]string{key.Value: value}); err != nil {
			f.Wrong(key.Value, "%v", err)
			continue
		}
		if p.Params == nil {
			p.Params = map[string]string{}
		}
		p.Params[key.Value] = value
	}
}

func devices(r *yamlfile.Reader, f *yamlfile.Form, c *Config) {
	known := map[string]bool{}
	f.List("devices", mostDevices, func(n *yaml.Node, path string) {
		var d DevicePolicy
		df := r.Form(n, path)
		df.IdentOrIndex("device", &d.Device)
		df.Need("device", "0")
		readPolicy(r, df, &d.Policy)
		df.Need("policy", policy.Names()[0])
		df.Done("a device")
		if known[d.Device] && d.Device != "" {
			df.Wrong("device", "device %s is there twice", d.Device)
		}
		known[d.Device] = true
		if choice, err := d.Policy.Choice(); err == nil && choice.AllDevices {
			df.Wrong("policy", "%s looks at all devices at once, so it cannot be the policy of one", d.Policy.Name)
		}
		c.Devices = append(c.Devices, d)
	})
}

func scheduler(f *yamlfile.Form, s *sched.Config) {
	floor := -1.0
	f.Ratio("floor", &floor, 0, 0.25)
	switch {
	case floor == 0: // zero is the default to the scheduler, and none to a person
		s.Floor = -1
	case floor > 0:
		s.Floor = floor
	}
	f.Duration("floor_turn", &s.FloorTurn, time.Millisecond, time.Minute)
	f.Duration("stall_limit", &s.StallLimit, 10*time.Millisecond, time.Hour)
}

// on reads what is so unless the file says false.
func on(f *yamlfile.Form, name string) bool {
	yes := true
	f.Boolean(name, &yes)
	return yes
}

// absolute reads the path of a file. The daemon's own folder is nothing to go by.
func absolute(f *yamlfile.Form, name string, v *string) {
	s, ok := f.String(name, "the path of a file")
	switch {
	case !ok:
	case !filepath.IsAbs(s) || len(s) > 4096:
		f.Wrong(name, "%q is not a path that begins with /", yamlfile.Clip(s))
	case name == "socket" && len(s) > 107:
		f.Wrong(name, "%d bytes, and the kernel takes 107", len(s))
	default:
		*v = s
	}
}

// listenTCP reads an address, or true for the default one.
func listenTCP(f *yamlfile.Form, c *Config) {
	s, ok := f.Scalar("tcp", "an address such as "+defaultTCP+", or true for that")
	absolute(f, "token_file", &c.TokenFile)
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
	if c.TCP != "" {
		f.Need("token_file", "/etc/giveway/token")
	}
}

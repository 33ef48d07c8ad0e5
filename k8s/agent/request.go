package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/sched"
)

// prefix begins the keys of all annotations that are read. A key with suffix and the name of
// a container applies to that container, and overrides the key without.
const (
	prefix = "giveway.dev/"
	suffix = ".container."
)

// keys are the annotations that give attributes. "shim" asks for injection.
var keys = map[string]attr.ID{"class": attr.Class, "weight": attr.Weight, "slo": attr.SLO, poolKey: attr.Pool}

const (
	shimKey = "shim"
	poolKey = "pool"
)

// maxValue is the length of the longest value that is read.
const maxValue = 64

// Pod is what the runtime says of a pod and one of its containers.
type Pod struct {
	Name, Namespace, UID string
	Annotations          map[string]string
	Container            string // its name
	ID                   string // its id
	Env                  []string
}

// Request is what a pod's annotations ask for a container.
type Request struct {
	Container api.Container
	Shim      bool // inject the shim
	Pool      bool // give access to the pool
	// Mistakes say what was left out, and why.
	Mistakes []string
}

// Read reads the annotations of a pod for one of its containers. trustClaims says that the
// environment may give class online: see claim.
func Read(p Pod, trustClaims bool) Request {
	r := Request{Container: api.Container{
		ID: p.ID, PodUID: p.UID, ContainerNames: api.ContainerNames{Name: p.Container, Pod: p.Name, Namespace: p.Namespace},
	}}
	r.claim(p.Env, trustClaims)
	for _, key := range slices.Sorted(maps.Keys(p.Annotations)) { // "class" comes before "class.container.NAME"
		name, ours := strings.CutPrefix(key, prefix)
		base, container, single := strings.Cut(name, suffix)
		if ours && (!single || container == p.Container) {
			r.take(key, base, p.Annotations[key])
		}
	}
	r.check()
	return r
}

// take takes one annotation.
func (r *Request) take(key, name, value string) {
	id, known := keys[name]
	switch {
	case !known && name != shimKey:
		r.mistake("annotation %.100q is not known; there are: %s", key, strings.Join(append(slices.Sorted(maps.Keys(keys)), shimKey), ", "))
	case len(value) > maxValue:
		r.mistake("annotation %s has more than %d bytes", key, maxValue)
	case name == shimKey:
		yes, err := strconv.ParseBool(value)
		if err != nil {
			r.mistake("annotation %s is %q, not true or false", key, value)
		}
		r.Shim = yes
	case name == poolKey:
		yes, err := strconv.ParseBool(value)
		if err != nil {
			r.mistake("annotation %s is %q, not true or false", key, value)
			return
		}
		r.Pool = yes
	default:
		v, err := id.Row().Parse(value)
		if err == nil {
			err = id.Of(v).Check(attr.ByRule)
		}
		if err != nil {
			r.mistake("annotation %s: %v", key, err)
			return
		}
		r.Container.Set(id, v)
	}
}

// claimEnv is the variable in which a DRA driver passes on the opaque configuration of a
// claim, as JSON.
const claimEnv = "GIVEWAY_GPU_PRIORITY="

// claimed is a GPUPriority of giveway.dev/v1.
type claimed struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Class      string `json:"class"`
	Weight     string `json:"weight"`
	SLO        string `json:"slo"`
}

// claim reads the configuration of a resource claim from the environment. Annotations
// override it. An image and a pod can set that variable as well, past the admission policies,
// so class online is accepted from it only where the administrator says that they cannot.
func (r *Request) claim(env []string, trust bool) {
	for _, e := range env {
		text, ok := strings.CutPrefix(e, claimEnv)
		if !ok {
			continue
		}
		var c claimed
		if len(text) > 1024 {
			r.mistake("the configuration of the claim has %d bytes", len(text))
			return
		}
		if err := json.Unmarshal([]byte(text), &c); err != nil || c.APIVersion != "giveway.dev/v1" || c.Kind != "GPUPriority" {
			r.mistake("the configuration of the claim is not a GPUPriority of giveway.dev/v1: %.100q", text)
			return
		}
		for _, f := range []struct{ name, value string }{{"class", c.Class}, {"weight", c.Weight}, {"slo", c.SLO}} {
			if f.value != "" {
				r.take("of the claim: "+f.name, f.name, f.value)
			}
		}
		if class, _ := r.Container.Get(attr.Class); !trust && r.Container.Has(attr.Class) && sched.Class(class) == sched.Online {
			r.Container.Remove(attr.Class)
			r.mistake("class online of the claim is left out: start the agent with --trust-claims if only the DRA driver can set the variable")
		}
	}
}

// check removes what contradicts the rest.
func (r *Request) check() {
	class, _ := r.Container.Get(attr.Class)
	if batch := r.Container.Has(attr.Class) && sched.Class(class) == sched.Batch; r.Pool && !batch {
		r.Pool = false
		r.mistake("annotation %spool is for class batch only", prefix)
	}
	if r.Pool {
		r.Container.Set(attr.Pool, int64(attr.ModeOn))
	}
	if err := r.Container.Check(); err != nil {
		r.Container = api.Container{ID: r.Container.ID, PodUID: r.Container.PodUID}
		r.mistake("names and attributes are left out: %v", err)
	}
}

// maxMistakes is how many mistakes of a container are reported.
const maxMistakes = 8

func (r *Request) mistake(format string, args ...any) {
	if len(r.Mistakes) < maxMistakes {
		r.Mistakes = append(r.Mistakes, fmt.Sprintf(format, args...))
	}
}

// Describe returns a container in short, for the log.
func Describe(c *api.Container) string {
	return cmp.Or(strings.Trim(c.Namespace+"/"+c.Pod+"/"+c.Name, "/"), c.ID[:min(12, len(c.ID))])
}

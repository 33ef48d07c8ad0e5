package agent

import (
	"path"
	"strings"
)

// Injection says what a container gets that asks for the shim or the pool. The folders on the
// host are mounted read-only.
type Injection struct {
	Library string // folder on the host with libgiveway.so; empty: none can be injected
	Socket  string // folder on the host with the daemon's control socket; empty: none
	Pool    string // the pool's pipe folder on the host; empty: there is no pool
}

// Places in the container.
const (
	libraryPlace = "/opt/giveway"
	socketPlace  = "/run/giveway"
	poolPlace    = "/run/giveway-pool"
)

// Mount is a folder of the host in a container.
type Mount struct{ Source, Destination string }

// Change is what is changed in a container.
type Change struct {
	Mounts []Mount
	Env    map[string]string // to be set
}

// Adjust returns what to change in a container, given its environment, and says what the
// request asks for in vain.
func (i Injection) Adjust(r *Request, env []string) Change {
	c := Change{Env: map[string]string{}}
	if r.Shim && i.Library == "" {
		r.Shim = false
		r.mistake("annotation %s%s has no effect: this node has no shim (--library)", prefix, shimKey)
	}
	if r.Pool && i.Pool == "" {
		r.Pool = false
		r.mistake("annotation %spool has no effect: this node has no pool (--pool)", prefix)
	}
	if r.Shim {
		c.Mounts = append(c.Mounts, Mount{i.Library, libraryPlace})
		c.Env["LD_PRELOAD"] = preload(value(env, "LD_PRELOAD"), path.Join(libraryPlace, "libgiveway.so"))
		if i.Socket != "" {
			c.Mounts = append(c.Mounts, Mount{i.Socket, socketPlace})
			c.Env["GIVEWAY_SOCKET"] = path.Join(socketPlace, "giveway.sock")
		}
	}
	if r.Pool {
		c.Mounts = append(c.Mounts, Mount{i.Pool, poolPlace})
		c.Env["CUDA_MPS_PIPE_DIRECTORY"] = poolPlace
	}
	return c
}

// value returns the value of a variable; the last one counts.
func value(env []string, name string) (v string) {
	for _, e := range env {
		if s, ok := strings.CutPrefix(e, name+"="); ok {
			v = s
		}
	}
	return v
}

// preload adds a library to a value of LD_PRELOAD, behind those that are there: they were put
// there for a reason, such as an allocator, and expect to be first.
func preload(was, library string) string {
	for _, l := range strings.FieldsFunc(was, func(r rune) bool { return r == ':' || r == ' ' }) {
		if l == library {
			return was
		}
	}
	if was == "" {
		return library
	}
	return was + ":" + library
}

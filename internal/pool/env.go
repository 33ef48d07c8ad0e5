package pool

import "strings"

const (
	// Env is set for the control daemon, the server and the members of a pool, to the pool's
	// label and its pipe folder, "label:/folder/pipe". Whatever such a process starts inherits
	// it, also an MPS server of the user's own, so it counts only together with the same
	// CUDA_MPS_PIPE_DIRECTORY: LabelOf.
	Env = "GIVEWAY_POOL"
	// FolderEnv names the folder of all pools of a user, if it is not the usual one.
	FolderEnv = "GIVEWAY_POOLS"

	pipeEnv    = "CUDA_MPS_PIPE_DIRECTORY"
	logEnv     = "CUDA_MPS_LOG_DIRECTORY"
	threadsEnv = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	// priorityEnv is 0 for a normal client, and 1 for one below normal.
	priorityEnv = "CUDA_MPS_CLIENT_PRIORITY"
	devicesEnv  = "CUDA_VISIBLE_DEVICES"
	orderEnv    = "CUDA_DEVICE_ORDER"
)

// LabelOf returns the label of the pool that an environment belongs to; empty: to none.
func LabelOf(env []string) string {
	value, _ := lookup(env, Env)
	label, pipe, ok := strings.Cut(value, ":")
	used, _ := lookup(env, pipeEnv)
	if !ok || pipe == "" || CheckLabel(label) != nil {
		return ""
	}
	// The control daemon starts its servers itself, and may give them a folder in its own.
	if used != pipe && !strings.HasPrefix(used, pipe+"/") {
		return ""
	}
	return label
}

// Started reports whether 'giveway run' started the program of an environment in a pool. The
// program may use another MPS server all the same, or none.
func Started(env []string) bool {
	_, started := lookup(env, Env)
	return started
}

// variables returns the variables by which a process is the pool's. They come first in an
// environment: a reader of /proc/PID/environ may not read all of it.
func (p *Pool) variables() []string {
	return []string{Env + "=" + p.Label + ":" + p.pipe(), pipeEnv + "=" + p.pipe(), logEnv + "=" + p.log()}
}

// WithoutPool returns an environment without the variables of a pool: a program that a
// member starts with 'giveway run' is not in the member's pool, unless it joins itself.
// Variables of an MPS server that giveway does not own stay.
func WithoutPool(env []string) []string {
	if LabelOf(env) == "" {
		return without(env, Env)
	}
	return without(env, pipeEnv, logEnv, threadsEnv, priorityEnv, Env)
}

// lookup returns the value of a variable; the last one counts, as in os/exec.
func lookup(env []string, name string) (value string, ok bool) {
	for _, e := range env {
		if v, is := strings.CutPrefix(e, name+"="); is {
			value, ok = v, true
		}
	}
	return value, ok
}

// without returns an environment without some variables.
func without(env []string, names ...string) (out []string) {
next:
	for _, e := range env {
		for _, name := range names {
			if strings.HasPrefix(e, name+"=") {
				continue next
			}
		}
		out = append(out, e)
	}
	return out
}

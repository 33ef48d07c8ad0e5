// Package agent tells the daemon of a node about the containers of its pods. It is a plugin
// of the container runtime's Node Resource Interface (NRI), which calls it before a
// container's first process is started.
//
//	pod's annotations -> Request -> api.Container -> Registrar -> daemon
//	                        └─────> Adjust: mounts and environment, if asked for
//
// A pod is never kept from starting: a mistake in its annotations is logged and left out, and
// the daemon is waited for only for a moment. What it has not heard by then it hears later.
package agent

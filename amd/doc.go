// Package amd holds a C library for programs that stop and start AMD compute queues
// themselves (giveway_amd.h), and its tests. It has no Go API.
package amd

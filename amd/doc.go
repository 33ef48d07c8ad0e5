// Package amd holds a C library for programs that drive AMD compute queues themselves
// (giveway_amd.h). There is nothing in it for Go programs; its tests are.
package amd

// Package scenario reads scenario files and runs them in the simulator: every client
// alone, then all clients together under each policy. docs/SCENARIOS.md describes the
// format.
//
// A file is checked as a whole before anything runs. An error has the line, the field
// and what is allowed, and several mistakes are reported at a time. Every number and
// list has a limit, so no file can make the reader use much time or memory.
package scenario

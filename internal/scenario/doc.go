// Package scenario reads scenario files and runs them in the simulator: every
// program alone, then all of them together under each policy asked for.
//
// A file is checked as a whole before anything runs. What is wrong with it is
// told with the line, the field and what is allowed there, several mistakes at
// a time. Nothing in a file can make the reader use much time or memory: every
// number and every list has a bound. docs/SCENARIOS.md describes the format.
package scenario

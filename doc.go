// Package giveway is the root of the module and holds no code. The command is
// in cmd/giveway, the scheduler's core in sched; the test beside this file
// says which package may import which.
package giveway

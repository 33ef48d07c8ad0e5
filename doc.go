// Package giveway is the root of the module. The command is in cmd/giveway, the
// scheduler's core in sched; the tests beside this file check which package may import
// which, and the documentation.
package giveway

import _ "embed"

// Release is the content of the file VERSION: the release that this source tree is, or
// is on the way to.
//
//go:embed VERSION
var Release string

package guardian

import (
	"os"
	"strings"
)

// When memory runs out, the kernel should kill other processes first, then the daemon, and
// the guardian never. An unprivileged process may raise its score, and lower it again to the
// lowest that a privileged process gave to it or its ancestors. So the unit starts the daemon
// with the guardian's score; the daemon raises its own, and the guardian goes back.
const oomFile = "/proc/self/oom_score_adj"

// The scores are text, so that the linker can set others (-X) in the program of a test that may not lower
// its own score.
var (
	guardianScore = "-1000" // is never killed
	daemonScore   = "-900"
)

// RaiseOOMScore makes the kernel kill this process, the daemon, before its guardian. It does
// nothing if the daemon was not started with the guardian's score.
func RaiseOOMScore() {
	text, _ := os.ReadFile(oomFile)
	if strings.TrimSpace(string(text)) == guardianScore {
		_ = setOOMScore(daemonScore) // raising needs no privilege
	}
}

// setOOMScore sets the score of this process.
func setOOMScore(score string) error { return os.WriteFile(oomFile, []byte(score), 0) }

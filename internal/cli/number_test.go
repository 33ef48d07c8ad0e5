package cli

import (
	"testing"

	"github.com/giveway/giveway/api"
)

// TestNumbersAgree: a flag says what the daemon would say.
func TestNumbersAgree(t *testing.T) {
	low, high := uint32(0), uint32(api.MostBound+1)
	for args, c := range map[string]api.Change{
		"--weight=0":          {Weight: &low},
		"--weight=65537":      {Weight: &high},
		"--bound=65537":       {Bound: &high},
		"--bound-batch=65537": {Batch: &high},
	} {
		want := "giveway: " + c.Check().Error() + "\nSee \"giveway set --help\".\n"
		if _, errs, code := call("set", "5", args); code != exitUsage || errs != want {
			t.Errorf("%s: exit %d\n%swant\n%s", args, code, errs, want)
		}
	}
}

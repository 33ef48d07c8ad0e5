package cuda

import "fmt"

// Result codes (CUresult in cuda.h).
const (
	success  = 0
	notReady = 600 // CUDA_ERROR_NOT_READY: the work still runs
)

// Error is a result of the driver library other than success.
type Error struct {
	Call string // the C function
	Code int
	Name string // CUDA_ERROR_..., if the library knows it
	Text string
}

func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s: error %d", e.Call, e.Code)
	}
	return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, e.Code, e.Text)
}

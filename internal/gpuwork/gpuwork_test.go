package gpuwork

import "testing"

func TestErrorText(t *testing.T) {
	for want, e := range map[string]Error{
		"cuInit: CUDA_ERROR_NO_DEVICE (100): no device": {"cuInit", 100, "CUDA_ERROR_NO_DEVICE", "no device"},
		"hipInit: hipErrorInvalidDevice (101)":          {"hipInit", 101, "hipErrorInvalidDevice", "hipErrorInvalidDevice"},
		"hipInit: error 7":                              {"hipInit", 7, "", ""},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

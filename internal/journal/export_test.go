package journal

// SetBootID makes this boot another one; "": the machine's.
func SetBootID(id string) {
	if bootID = machineBootID; id != "" {
		bootID = func() string { return id }
	}
}

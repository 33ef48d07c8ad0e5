package discover

// Look describes a process. Whoever asks for a pid must have something that tells
// whether it is still the same process afterwards.
func Look(pid int) (Process, error) { return procfs("/proc").process(pid) }

package proc

// Lineage returns a process and its ancestors without init, nearest first: at most 64. A
// process whose parent has exited has been given a new parent. It reads one file per
// ancestor, by stat.
func Lineage(p ID, stat func(pid int) (Stat, error)) []ID {
	line := []ID{p}
	s, err := stat(p.PID)
	if err != nil || s.Start != p.Start {
		return line
	}
	for len(line) < maxDepth && s.Parent > 1 {
		child, pid := s, s.Parent
		// A parent is older than its children. A younger process has taken the pid of a
		// parent that has exited since.
		if s, err = stat(pid); err != nil || s.Start > child.Start {
			break
		}
		line = append(line, ID{pid, s.Start})
	}
	return line
}

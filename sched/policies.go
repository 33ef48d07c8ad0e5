package sched

// Policies calls f with each device and the name of the policy that is in force on it,
// in order of device ID.
func (s *Scheduler) Policies(f func(id DeviceID, policy string)) {
	for _, d := range s.devices {
		f(d.ID, d.domain.choice.Name)
	}
}

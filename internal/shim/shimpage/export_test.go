package shimpage

// Constants that the tests check against.
const (
	MaxQueues  = maxQueues
	MaxRequest = maxRequest
)

// Muted returns how many doorbells are muted.
func (d *Doorbells) Muted() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.muted
}

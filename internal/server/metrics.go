package server

import (
	"net/http"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/metrics"
)

// metrics answers a scrape. It tells a caller of processes what GET /v1/processes
// tells it, and less.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		s.reply(w, r, nil, http.MethodGet)
		return
	}
	c, err := s.who(r)
	if err != nil {
		s.refuse(w, err)
		return
	}
	var processes []api.Process
	for _, p := range s.node.Processes() {
		processes = append(processes, c.veil(p))
	}
	text := metrics.Text(s.node.Status(), processes)
	w.Header().Set("Content-Type", metrics.ContentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(text) // the caller may be gone
}

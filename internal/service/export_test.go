package service

// Wills returns the number of wills that the members have given.
func (s *Server) Wills() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.mu.Lock()
		n += len(c.wills)
		c.mu.Unlock()
	}
	return n
}

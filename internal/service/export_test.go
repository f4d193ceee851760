package service

// ChangeUsers makes the members look like programs of another user.
func (s *Server) ChangeUsers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.slots {
		if n != nil {
			n.cred.Uid++
		}
	}
}

// Merging reports whether the kernel may merge packets.
func (s *Server) Merging() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.unmerged
}

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

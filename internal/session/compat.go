package session

import (
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

// StatusError is endpoint.StatusError.
func StatusError(wc *roce.WC) error { return endpoint.StatusError(wc) }

package figures

import "github.com/gorxe/gorxe/papers/kit"

// curves returns the experiments that only the plot needs.
func curves() []experiment { return nil }

// Panels implements kit.Report.
func (r *Report) Panels() []kit.Panel { return nil }

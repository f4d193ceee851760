package mr

// Backing accesses memory of another process, of which the memory of an MR is a local copy. The
// engine works on the copy. Its owner calls all methods.
type Backing interface {
	// Load reads the bytes of b, a part of the MR's memory, from the other process. Stores that
	// came before are visible in them. It returns false if the other process has no such memory.
	Load(b []byte) bool
	// Store writes src to the other process, where dst, a part of the MR's memory of the same
	// length, is the copy. It may leave dst as it is. It writes at once or before the engine sends
	// the next packet or reports the next completion; until then src, which may be dst, does not
	// change. If ordered is true, the last aligned word becomes visible after all bytes before it.
	Store(dst, src []byte, ordered bool)
}

// RegisterForeign is Register for memory of another process. mem is the local copy; its address
// must equal that of the original modulo 8. Checks of the MR's keys return Foreign instead of OK.
// With remote access the L_Key is the R_Key, as in the kernel's rxe: some programs of verbs send
// the L_Key to their peer. The L_Key may then be a value that a deregistered region had.
func (t *Table) RegisterForeign(pd *PD, mem []byte, iova uint64, a Access, b Backing) (*MR, error) {
	return t.register(pd, mem, iova, a, nil, b)
}

// LocalBacking returns the Backing of the region with this L_Key, for which CheckLocal has returned
// Foreign. It is nil if there is none.
func (t *Table) LocalBacking(key Key) Backing { return t.local.find(key).backing() }

// RemoteBacking is LocalBacking for an R_Key.
func (t *Table) RemoteBacking(key Key) Backing { return t.findRemote(key).backing() }

func (m *MR) backing() Backing {
	if m == nil || m.ext == nil {
		return nil
	}
	return m.ext.backing
}

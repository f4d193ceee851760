package sysfs

import (
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Device describes an RDMA device with one port.
type Device struct {
	Name      string // for example "rxe0"
	Interface string // network interface
	MAC       string
	Up        bool
	GUID      [8]byte // of the node, in network byte order
	GIDs      []GID
	CM        bool // the connection manager has a device file

	Counters iter.Seq2[string, uint64] // current values; nil: there are none
}

// GID is an entry of the GID table.
type GID struct {
	Index int
	GID   [16]byte
}

// Equal reports whether d and e have the same files, apart from the values of counters.
func (d *Device) Equal(e *Device) bool {
	return d.Name == e.Name && d.Interface == e.Interface && d.MAC == e.MAC && d.Up == e.Up &&
		d.GUID == e.GUID && d.CM == e.CM && slices.Equal(d.GIDs, e.GIDs)
}

// maxGIDs is the size of the GID table. Entries without an address are zero.
const maxGIDs = 64

// Update writes the files for the current state of the device.
func (t *Tree) Update(d *Device) error {
	return t.write(files(d))
}

// UpdateCounters writes the files of the counters.
func (t *Tree) UpdateCounters(d *Device) error {
	f := map[string]string{}
	counters(f, d)
	return t.write(f)
}

// write writes files, whose names are relative to the root.
func (t *Tree) write(files map[string]string) error {
	for name, text := range files {
		name = filepath.Join(t.root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		// A new file, so that a program that reads the old one does not see half of each.
		if err := os.WriteFile(name+".new", []byte(text), 0o644); err != nil {
			return err
		}
		if err := os.Rename(name+".new", name); err != nil {
			return err
		}
	}
	return nil
}

// files returns paths and contents.
func files(d *Device) map[string]string {
	state, phys := "1: DOWN", "3: Disabled"
	if d.Up {
		state, phys = "4: ACTIVE", "5: LinkUp"
	}
	f := map[string]string{
		"dev/infiniband/" + UverbsName: "",
		"dev/char/231:192":             "",

		"sys/class/infiniband_verbs/abi_version": "6\n",
	}
	if d.CM {
		f["dev/infiniband/rdma_cm"] = ""
		f["sys/class/misc/rdma_cm/abi_version"] = "4\n"
		f["sys/class/misc/rdma_cm/dev"] = "10:58\n"
	}
	dir := "sys/class/infiniband_verbs/" + UverbsName + "/"
	f[dir+"ibdev"] = d.Name + "\n"
	f[dir+"dev"] = "231:192\n"
	f[dir+"abi_version"] = "2\n"
	f[dir+"uevent"] = "MAJOR=231\nMINOR=192\nDEVNAME=infiniband/" + UverbsName +
		"\nDEVMODE=0666\n"
	dir = "sys/class/infiniband/" + d.Name + "/"
	f[dir+"node_type"] = "1: CA\n"
	f[dir+"node_guid"] = guid(d.GUID) + "\n"
	f[dir+"sys_image_guid"] = guid(d.GUID) + "\n"
	f[dir+"node_desc"] = d.Name + "\n"
	f[dir+"fw_ver"] = "\n"
	f[dir+"parent"] = d.Interface + "\n"
	f[dir+"uevent"] = "NAME=" + d.Name + "\n"
	dir += "ports/1/"
	f[dir+"state"] = state + "\n"
	f[dir+"phys_state"] = phys + "\n"
	f[dir+"link_layer"] = "Ethernet\n"
	f[dir+"rate"] = "2.5 Gb/sec (1X SDR)\n"
	f[dir+"lid"] = "0x0\n"
	f[dir+"lid_mask_count"] = "0\n"
	f[dir+"sm_lid"] = "0x0\n"
	f[dir+"sm_sl"] = "0\n"
	f[dir+"cap_mask"] = "0x00010000\n"
	f[dir+"pkeys/0"] = "0xffff\n"
	gids(f, dir, d)
	counters(f, d)
	return f
}

// counters adds the files of the counters.
func counters(f map[string]string, d *Device) {
	if d.Counters == nil {
		return
	}
	for name, v := range d.Counters {
		f["sys/class/infiniband/"+d.Name+"/ports/1"+counterDir+name] = fmt.Sprintln(v)
	}
}

// gids adds the files of the GID table.
func gids(f map[string]string, dir string, d *Device) {
	var table [maxGIDs][16]byte
	for _, g := range d.GIDs {
		if g.Index < 0 || g.Index >= maxGIDs {
			continue
		}
		table[g.Index] = g.GID
		f[fmt.Sprint(dir, "gid_attrs/types/", g.Index)] = "RoCE v2\n"
		f[fmt.Sprint(dir, "gid_attrs/ndevs/", g.Index)] = d.Interface + "\n"
	}
	for i, g := range table {
		f[fmt.Sprint(dir, "gids/", i)] = gid(g) + "\n"
	}
}

// gid formats a GID as sysfs does.
func gid(g [16]byte) string {
	var b strings.Builder
	for i := 0; i < len(g); i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", g[i], g[i+1])
	}
	return b.String()
}

// guid formats a GUID as sysfs does.
func guid(g [8]byte) string {
	return fmt.Sprintf("%02x%02x:%02x%02x:%02x%02x:%02x%02x", g[0], g[1], g[2], g[3], g[4], g[5],
		g[6], g[7])
}

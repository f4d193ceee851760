package image

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// recipeVersion must be raised when code of this package changes the contents of an image.
const recipeVersion = 2

// spec is the recipe: Debian packages and what is taken from them.
type spec struct {
	release  string   // Debian's code name; empty: the source of this host's apt-get
	kernel   string   // the package that depends on the newest stock kernel
	packages []string // with all dependencies; unpacked, never installed
	programs []string // copied with the libraries that they need
	extra    []string // libraries opened by name at run time (glob patterns below a library folder)
	data     []string // files and folders copied unchanged
	boot     []string // modules that init loads
	modules  []string // modules for modprobe
	hostTool []hostTool
}

// hostTool is a program that this host needs and its Debian package.
type hostTool struct{ program, pkg string }

// Trixie is Debian 13: Linux 6.12, whose rxe supports FLUSH and ATOMIC_WRITE, and the RDMA tools of
// 2025.
const Trixie = "trixie"

// recipe returns the recipe for a Debian release; the empty string means this host's.
func recipe(release string) (*spec, error) {
	s := debian
	switch s.release = release; release {
	case "", Trixie:
		return &s, nil
	}
	return nil, fmt.Errorf("image: no recipe for Debian release %q: choose %q or leave it empty for this host's", release, Trixie)
}

var debian = spec{
	// The cloud kernel has no rdma_rxe.
	kernel: "linux-image-amd64",
	packages: []string{"busybox-static", "dash", "ethtool", "ibverbs-providers", "ibverbs-utils",
		"iproute2", "libibverbs-dev",
		"librdmacm-dev", "perftest", "qperf", "rdmacm-utils"},
	programs: []string{"dash", "ip", "tc", "rdma", "ethtool", "qperf",
		"ibv_devinfo", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong",
		"ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat", "ib_send_bw", "ib_send_lat",
		"ib_atomic_bw", "ib_atomic_lat",
		"rping", "ucmatose", "udaddy", "mckey", "rdma_server", "rdma_client", "rstream",
		"riostream", "rcopy"},
	extra: []string{"libibverbs/librxe-rdmav*.so", "libgcc_s.so.1"},
	data: []string{"etc/libibverbs.d/rxe.driver", "etc/iproute2", "usr/share/iproute2",
		"usr/lib/tc"},
	boot: []string{"virtio_pci", "virtio_net", "virtio_console", "crc32_generic", "rdma_rxe",
		"ib_uverbs", "rdma_ucm",
		"ifb", "sch_netem", "sch_ingress", "act_mirred", "cls_matchall"},
	modules: []string{"ib_umad", "veth", "dummy", "nvme_rdma"},
	hostTool: []hostTool{{"qemu-system-x86_64", "qemu-system-x86"}, {"gcc", "gcc"},
		{"/usr/include/stdio.h", "libc6-dev"},
		{"xz", "xz-utils"}, {"zstd", "zstd"}, {"dpkg-deb", "dpkg"}, {"apt-get", "apt"}},
}

// hash identifies the recipe.
func (s *spec) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %q", recipeVersion, *s))
	return hex.EncodeToString(sum[:8])
}

// systemFiles are passwd and other files that programs expect.
var systemFiles = map[string]string{
	"etc/passwd":        "root:x:0:0:root:/root:/bin/sh\n",
	"etc/group":         "root:x:0:\n",
	"etc/hosts":         "127.0.0.1 localhost\n::1 localhost\n",
	"etc/nsswitch.conf": "hosts: files\n",
	"etc/protocols":     "icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\n",
}

// Package image builds what a guest boots from: Debian's stock kernel with rdma_rxe and an initramfs with Debian's
// RDMA tools, our agent as init, and our peers.
//
// Everything comes from the Debian archive that this host is set up for, or from Debian's own where a release is asked for by
// name; nothing is installed but what Missing lists.
// The result stands in the user's cache folder, named after a hash of the recipe (spec.go), the
// agent and the peers, so that it is built once, and again as soon as one of them changes.
//
// Reading order: spec.go (what goes in), build.go (the steps), peers.go, kernel.go, apt.go, sysroot.go, modules.go, cpio.go.
package image

// Package image builds what a guest boots from: Debian's stock kernel with rdma_rxe, and an
// initramfs with Debian's RDMA tools, gorxe's agent as init, and the peers.
//
// Everything comes from the Debian archive that this host uses, or from Debian's own if a release
// is named. Only what Missing lists is installed. The result is kept in the user's cache folder,
// named after a hash of the recipe, the agent and the peers, so it is built once and again when one
// of them changes.
//
// Reading order:
//
//   - spec.go: the recipe.
//   - build.go: the steps.
//   - peers.go, kernel.go, apt.go, sysroot.go, modules.go, cpio.go: each of them.
//   - tree.go: rdma-core's test suite.
package image

// Package transport contains message layers over verbs from papers. Each is a package that uses
// the public API of package roce.
//
//   - statusbyte: blocks with one status byte each, one-sided only (Xiao et al., Appl. Sci. 2024,
//     14, 7437).
//   - slidingwindow: the transport that it is compared with: WRITE with immediate, ACKs by SEND.
//   - indirect: data goes to a reserved buffer while its destination is not registered yet.
//   - flow: tasks and channels with priorities and deadlines (Abaza et al., 2023).
//   - rftp: data in large blocks over long networks (Ren et al., 2012).
//
// The papers' experiments are "gorxe bench statusbyte", "gorxe bench indirect" and "gorxe bench
// flow".
package transport

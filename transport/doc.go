// Package transport is the folder of the message layers over verbs that papers describe: each a package of its own, which
// imports package roce and nothing below it.
//
//   - statusbyte: blocks with a status byte each, one-sided throughout (Xiao et al., Appl. Sci. 2024, 14, 7437);
//   - slidingwindow: its rival: WRITE with immediate, ACKs by SEND, head and tail;
//   - indirect: data that goes to a reserved buffer while its destination is not registered yet.
//
// The experiments of the papers are "gorxe bench statusbyte" and "gorxe bench indirect".
package transport

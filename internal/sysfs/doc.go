// Package sysfs builds the files by which programs find an RDMA device: directories like those of
// Linux under /sys/class/infiniband and /dev/infiniband, in a private directory.
//
// [New] creates the tree for a [Device]. [Tree.Find] translates a path of a program, for example
// /sys/class/infiniband/rxe0/node_type, to a path in the tree. Character devices are empty files in
// the tree; [Entry] has their device number. [Tree.Close] removes the tree.
//
// Reading order:
//   - tree.go: Tree, the translation of paths
//   - files.go: Device, names and contents of the files
package sysfs

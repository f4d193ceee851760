// Command gorxe is an RDMA NIC in software: RoCEv2 in user space over AF_XDP.
//
// Each subcommand is a package in internal; cli holds what they share. This
// file only puts them together.
package main

import (
	"os"

	"github.com/gorxe/gorxe/internal/cli"
)

func main() { os.Exit(cli.Run(root(), os.Args[1:])) }

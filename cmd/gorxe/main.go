// Command gorxe is a software RDMA NIC: RoCEv2 in user space over AF_XDP. Each subcommand is a
// package in directory internal.
package main

import (
	"os"

	"github.com/gorxe/gorxe/internal/cli"
)

func main() { os.Exit(cli.Run(root(), os.Args[1:])) }

// Command gorxe is a software RDMA NIC: RoCEv2 in user space over AF_XDP. Each subcommand is a
// package in directory internal.
package main

import (
	"fmt"
	"os"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/confine"
	"github.com/gorxe/gorxe/internal/supervisor"
)

func main() {
	supervisor.Shim()
	if err := confine.Raise(); err != nil {
		fmt.Fprintln(os.Stderr, "gorxe:", err)
		os.Exit(cli.StatusFailure)
	}
	os.Exit(cli.Run(root(), os.Args[1:]))
}

// Command typecheck reports the type errors of packages and their tests for another architecture.
// It reads their dependencies as source, so it takes seconds where go vet would compile all of
// them.
//
//	go run ./.ci/typecheck arm64 ./...
package main

import (
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: typecheck GOARCH PACKAGES")
		os.Exit(2)
	}
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.LoadAllSyntax, Tests: true,
		Env: append(os.Environ(), "GOARCH="+os.Args[1], "CGO_ENABLED=0"),
	}, os.Args[2:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
	if packages.PrintErrors(loaded) > 0 {
		os.Exit(1)
	}
}

// Command typecheck reports the type errors of packages for another operating system or
// architecture. For Linux it also checks their tests. It reads dependencies as source, so it takes
// seconds where go vet would compile all of them.
//
//	go run ./.ci/typecheck linux/arm64 ./...
package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 3 || !strings.Contains(os.Args[1], "/") {
		fmt.Fprintln(os.Stderr, "usage: typecheck GOOS/GOARCH PACKAGES")
		os.Exit(2)
	}
	goos, goarch, _ := strings.Cut(os.Args[1], "/")
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.LoadAllSyntax, Tests: goos == "linux",
		Env: append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
	}, os.Args[2:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
	if packages.PrintErrors(loaded) > 0 {
		os.Exit(1)
	}
}

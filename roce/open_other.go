//go:build !linux

package roce

import (
	"fmt"
	"runtime"

	"github.com/gorxe/gorxe/driver"
)

// errNeedsLinux is the error of Open and OpenService.
var errNeedsLinux = fmt.Errorf("roce: network interfaces need Linux, and this is %s: "+
	"use links in memory (package loopback) with New: %w", runtime.GOOS, ErrUnsupported)

func openPort(string, *config) (driver.Port, string, error) { return nil, "", errNeedsLinux }

func (c *config) joinService(string) (driver.Port, error) { return nil, errNeedsLinux }

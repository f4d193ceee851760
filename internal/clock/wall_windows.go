package clock

import "golang.org/x/sys/windows"

// wall reads the operating system's clock: nanoseconds since 1970.
func wall() int64 {
	var t windows.Filetime
	windows.GetSystemTimePreciseAsFileTime(&t)
	return t.Nanoseconds()
}

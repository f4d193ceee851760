// Package osthread controls the calling goroutine's operating system thread. It needs Linux; on
// other systems its functions do what is possible there.
package osthread

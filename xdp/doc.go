// Package xdp is the AF_XDP Port: it takes the RoCEv2 frames of an ordinary Linux interface into user space and
// puts frames on its wire.
package xdp

package mr

import (
	"fmt"
	"testing"
)

func BenchmarkCheckRemote(b *testing.B) {
	for _, n := range []int{1, 1024, 65_536} {
		tab, pd := newTable(b, Config{})
		keys := make([]Key, n)
		mem := words(4096)
		for i := range keys {
			keys[i] = register(b, tab, pd, mem, 0, allRemote|ZeroBased).RKey()
		}
		b.Run(fmt.Sprintf("hit/%d", n), func(b *testing.B) {
			i := 0
			for b.Loop() {
				if _, v := tab.CheckRemote(pd, keys[i], 64, 1024, RemoteWrite); v != OK {
					b.Fatal(v)
				}
				if i += 7919; i >= n {
					i %= n
				}
			}
		})
		b.Run(fmt.Sprintf("miss/%d", n), func(b *testing.B) {
			k := Key(1)
			for b.Loop() {
				tab.CheckRemote(pd, k, 64, 1024, RemoteWrite)
				k = k*1664525 + 1013904223
			}
		})
	}
}

func BenchmarkRegisterDeregister(b *testing.B) {
	tab, pd := newTable(b, Config{})
	mem := words(4096)
	for b.Loop() {
		m, err := tab.Register(pd, mem, 0, allRemote)
		if err != nil {
			b.Fatal(err)
		}
		if err := tab.Deregister(m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCopy(b *testing.B) {
	dst, src := words(4096), words(4096)
	for _, n := range []int{1, 8, 64, 1024, 4096} {
		for name, f := range map[string]func(dst, src []byte){"in": CopyIn, "out": CopyOut,
			"plain": func(dst, src []byte) { copy(dst, src) }} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					f(dst[:n], src[:n])
				}
			})
		}
	}
}

func BenchmarkLoad8(b *testing.B) {
	tab, pd := newTable(b, Config{})
	m := register(b, tab, pd, words(64), 0, LocalWrite)
	for b.Loop() {
		m.Load8(33)
	}
}

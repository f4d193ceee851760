package image

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
)

// Fields of a bzImage's header (the kernel's x86 boot protocol, 2.08 and later), by offset; 32 bits
// except the first.
const (
	bootSectors    = 0x1f1 // 8 bits: sectors of real-mode code after the first
	bootPayload    = 0x248 // start of the compressed kernel, relative to the protected-mode code
	bootPayloadLen = 0x24c
	bootHeadLen    = 0x250
	sectorSize     = 512
)

// unpackers are the programs for Debian's kernel compression: xz in 12, zstd in 13.
var unpackers = []struct {
	magic string
	argv  []string
}{
	{"\xfd7zXZ\x00", []string{"xz", "-dc", "--single-stream"}},
	{"\x28\xb5\x2f\xfd", []string{"zstd", "-dc"}},
}

// payload returns the compressed kernel inside a bzImage without the 4 bytes of its unpacked
// length; nil if there is none.
func payload(image []byte) []byte {
	if len(image) < bootHeadLen || image[bootSectors] == 0 {
		return nil
	}
	u32 := func(at int) int64 { return int64(binary.LittleEndian.Uint32(image[at:])) }
	from := (int64(image[bootSectors])+1)*sectorSize + u32(bootPayload)
	to := from + u32(bootPayloadLen) - 4
	if from > to || to > int64(len(image)) {
		return nil
	}
	return image[from:to]
}

// unzipKernel writes the ELF file inside a bzImage: qemu starts it directly, which saves BIOS and
// decompression, most of a boot without KVM. A kernel with another compression, or without the
// program to unpack it, is used as it is.
func unzipKernel(ctx context.Context, from, to string) error {
	image, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	packed := payload(image)
	for _, u := range unpackers {
		if !bytes.HasPrefix(packed, []byte(u.magic)) {
			continue
		}
		cmd := exec.CommandContext(ctx, u.argv[0], u.argv[1:]...)
		cmd.Stdin = bytes.NewReader(packed)
		if out, err := cmd.Output(); err == nil && bytes.HasPrefix(out, []byte(elf.ELFMAG)) {
			return os.WriteFile(to, out, 0o644)
		}
	}
	return os.WriteFile(to, image, 0o644)
}

package roce

import (
	"bytes"
	"encoding"
	"errors"
	"testing"
)

var (
	_ encoding.BinaryMarshaler   = RemoteBuffer{}
	_ encoding.BinaryAppender    = RemoteBuffer{}
	_ encoding.BinaryUnmarshaler = (*RemoteBuffer)(nil)
)

// The binary form of a RemoteBuffer survives the padding of private data.
func TestRemoteBufferBinary(t *testing.T) {
	want := RemoteBuffer{Addr: 0x1122334455667788, Len: 0x99aabbccddee, RKey: 0x01020304}
	b, err := want.MarshalBinary()
	must(t, err)
	if text := []byte("\x11\x22\x33\x44\x55\x66\x77\x88\x00\x00\x99\xaa\xbb\xcc\xdd\xee\x01\x02\x03\x04"); !bytes.Equal(
		b, text) || len(b) != RemoteBufferLen {
		t.Errorf("MarshalBinary() = %x, want %x", b, text)
	}
	for _, pad := range []int{0, 1, 36} {
		var got RemoteBuffer
		if err := got.UnmarshalBinary(append(bytes.Clone(b), make([]byte, pad)...)); err != nil ||
			got != want {
			t.Errorf("UnmarshalBinary() with %d zeros = %+v, %v", pad, got, err)
		}
	}
	top, _ := RemoteBuffer{Addr: 1<<64 - 5, Len: 5}.MarshalBinary()
	if err := new(RemoteBuffer).UnmarshalBinary(top); err != nil {
		t.Errorf("at the end of the address space: %v", err)
	}
	over, _ := RemoteBuffer{Addr: 1<<64 - 5, Len: 6}.MarshalBinary()
	empty, _ := RemoteBuffer{Addr: 7}.MarshalBinary()
	for name, bad := range map[string][]byte{"nothing": nil, "short": b[:19],
		"zeros": make([]byte, 56), "followed by data": append(bytes.Clone(b), 0, 1),
		"beyond the address space": over, "empty": empty} {
		got := want
		if err := got.UnmarshalBinary(bad); !errors.Is(err, ErrInvalid) || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// Private data of any length, also with zeros at the end, arrives as it was sent.
func TestPrivateDataOfAnyLength(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	l := k.listen(t)
	ctx := within(t)
	for _, n := range []int{0, 1, 55} {
		want := make([]byte, n) // zeros
		done := make(chan struct{})
		go func() {
			defer close(done)
			r, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			got, err := DecodePrivateData(r.PrivateData())
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes: request with %x, %v", n, got, err)
			}
			if err := r.Reject(EncodePrivateData(want)); err != nil {
				t.Error(err)
			}
		}()
		_, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{PrivateData: EncodePrivateData(want)})
		<-done
		var no *RejectError
		if !errors.As(err, &no) {
			t.Fatal(err)
		}
		if got, err := DecodePrivateData(no.PrivateData); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: refused with %x, %v", n, got, err)
		}
	}
	for _, n := range []int{56, 255, 256, 1000} {
		if _, err := k.a.Dial(ctx, k.addr, k.a.qp,
			DialOptions{PrivateData: EncodePrivateData(make([]byte, n))}); !errors.Is(err,
			ErrPrivateData) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for _, bad := range [][]byte{nil, {1}, {56, 0, 0}, {1, 2, 3}, []byte("text")} {
		if got, err := DecodePrivateData(bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("DecodePrivateData(%x) = %x, %v", bad, got, err)
		}
	}
	longest := bytes.Repeat([]byte{7}, 255)
	if got, err := DecodePrivateData(EncodePrivateData(longest)); err != nil ||
		!bytes.Equal(got, longest) {
		t.Errorf("255 bytes: DecodePrivateData() = %x, %v", got, err)
	}
}

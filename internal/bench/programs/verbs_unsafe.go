package programs

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of RDMA_VERBS_IOCTL and of its method QUERY_PORT, as in rdma-core's headers.
const (
	verbsIoctl   = 0xc0181b01
	headerSize   = 24
	attrSize     = 16
	methodQuery  = 2 // of object 0, the device
	driverRXE    = 14
	portAttrSize = 64 // of the response
)

// portQuery is the call QUERY_PORT.
type portQuery struct {
	request  [headerSize + 2*attrSize]byte
	response [portAttrSize]byte
}

// call makes the call on an open verbs device. The thread must be locked to its goroutine.
func (q *portQuery) call(fd int) error {
	b, le := q.request[:], binary.LittleEndian
	clear(b)
	le.PutUint16(b, uint16(len(b)))
	le.PutUint16(b[4:], methodQuery)
	le.PutUint16(b[6:], 2) // attributes
	le.PutUint32(b[16:], driverRXE)
	port, out := b[headerSize:], b[headerSize+attrSize:]
	le.PutUint16(port[2:], 1) // bytes
	port[8] = 1               // port number
	le.PutUint16(out, 1)
	le.PutUint16(out[2:], portAttrSize)
	address := uint64(uintptr(unsafe.Pointer(&q.response[0])))
	le.PutUint64(out[8:], address)
	// Not unix.Syscall: the time would include that of Go's scheduler.
	_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), verbsIoctl,
		uintptr(unsafe.Pointer(&q.request[0])))
	runtime.KeepAlive(q)
	if e != 0 {
		return e
	}
	return nil
}

package ucma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/gorxe/gorxe/roce/cm"
)

// command is a command of a program.
type command struct {
	f    *File
	call Caller
	in   decoder
	out  int   // size of the result that the program expects
	n    int64 // what write returns

	listening *id        // of a successful LISTEN
	foreign   netip.Addr // the address that the device does not have, of ENODEV
}

// handlers lists the commands that the owner of the loop executes. They return the result.
// GET_EVENT is missing because it waits. QUERY, BIND, RESOLVE_ADDR and JOIN_MCAST are for AF_IB
// addresses: without them librdmacm uses the commands for IP addresses. The kernel has no
// GET_OPTION either.
var handlers = map[uint32]func(q *command, now cm.Time, m *cm.CM) ([]byte, syscall.Errno){
	cmdCreateID: (*command).createID, cmdDestroyID: (*command).destroyID,
	cmdBindIP: (*command).bindIP, cmdResolveIP: (*command).resolveIP,
	cmdResolveRoute: (*command).resolveRoute, cmdQueryRoute: (*command).queryRoute,
	cmdConnect: (*command).connect, cmdListen: (*command).listen, cmdAccept: (*command).accept,
	cmdReject: (*command).reject, cmdDisconnect: (*command).disconnect,
	cmdInitQPAttr: (*command).initQPAttr, cmdSetOption: (*command).setOption,
	cmdNotify: (*command).notify, cmdJoinIPMcast: (*command).join, cmdLeaveMcast: (*command).leave,
	cmdMigrateID: (*command).migrate,
}

// responds are the commands with a result. They start with its address, except CREATE_ID.
var responds = map[uint32]bool{cmdCreateID: true, cmdDestroyID: true, cmdBindIP: true,
	cmdQueryRoute: true, cmdInitQPAttr: true, cmdJoinIPMcast: true, cmdLeaveMcast: true,
	cmdMigrateID: true}

// needDevice are the commands that fail once the device does not work any more.
var needDevice = map[uint32]bool{cmdBindIP: true, cmdResolveIP: true, cmdResolveRoute: true,
	cmdConnect: true, cmdListen: true, cmdAccept: true, cmdInitQPAttr: true, cmdJoinIPMcast: true}

// Write executes the command that a program writes: n bytes at addr.
func (f *File) Write(c Caller, addr, n uint64) (int64, syscall.Errno) {
	if n < headerSize {
		return 0, syscall.EINVAL
	}
	b := make([]byte, min(n, maxCommand))
	if c.ReadAt(b, addr) != nil {
		return 0, syscall.EFAULT
	}
	code, size := binary.LittleEndian.Uint32(b), int(binary.LittleEndian.Uint16(b[4:]))
	if uint64(size)+headerSize > n {
		return 0, syscall.EINVAL
	}
	q := &command{f: f, call: c, out: int(binary.LittleEndian.Uint16(b[6:])), n: int64(n)}
	q.in.B = b[headerSize:min(headerSize+size, len(b))]
	if code == cmdGetEvent {
		return f.getEvent(c, q)
	}
	h := handlers[code]
	switch {
	case h == nil:
		return 0, syscall.ENOSYS
	case needDevice[code] && f.dev.dev.Err() != nil:
		return 0, syscall.ENODEV
	}
	var to uint64
	if responds[code] {
		to = q.in.U64()
	}
	if code == cmdCreateID { // here the program's name of the ID comes first
		uid := to
		to = q.in.U64()
		q.in.B = append(binary.LittleEndian.AppendUint64(nil, uid), q.in.B...)
	}
	if no := q.prepare(code); no != 0 {
		return 0, no
	}
	var result []byte
	no := f.dev.do(func(now cm.Time, m *cm.CM) (no syscall.Errno) {
		if f.closed {
			return syscall.EBADF
		}
		result, no = h(q, now, m)
		return no
	})
	if no == 0 && q.listening != nil {
		no = q.listening.announce()
	}
	switch {
	case no == syscall.ENODEV && !ofHost(q.foreign):
		return 0, syscall.EADDRNOTAVAIL
	case no != 0:
		return 0, no
	case result != nil && c.WriteAt(result[:min(q.out, len(result))], to) != nil:
		return 0, syscall.EFAULT
	}
	return q.n, 0
}

// ofHost reports whether an interface of this host has the address.
func ofHost(a netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(addrs, func(o net.Addr) bool {
		p, err := netip.ParsePrefix(o.String())
		return err == nil && p.Addr() == a
	})
}

// prepare copies what commands need besides their structure, before the owner of the loop executes
// them: the value of an option, and the inode of a file.
func (q *command) prepare(code uint32) syscall.Errno {
	switch code {
	case cmdSetOption:
		d := q.in
		addr := d.U64()
		d.Skip(12)
		b := make([]byte, 4)
		size := d.U32()
		if size == 0 {
			return syscall.EINVAL
		}
		if q.call.ReadAt(b[:min(size, 4)], addr) != nil {
			return syscall.EFAULT
		}
		q.in.B = append(q.in.Bytes(24)[8:20:20], b...)
		q.in.B = binary.LittleEndian.AppendUint32(q.in.B, size)
	case cmdMigrateID:
		handle, fd := q.in.U32(), int32(q.in.U32())
		ino, err := inodeOf(fmt.Sprintf("/proc/%d/fd/%d", q.call.PID(), fd))
		if err != nil {
			return syscall.EBADF
		}
		var e encoder
		e.U32(handle)
		e.U64(ino.dev)
		e.U64(ino.ino)
		q.in.B = e.B
	}
	return 0
}

// id returns the ID of the file that the command names next.
func (q *command) id() (*id, syscall.Errno) {
	i := q.f.dev.ids[q.in.U32()]
	if i == nil || i.file != q.f {
		return nil, syscall.ENOENT
	}
	return i, 0
}

// result returns the structure of u32 values.
func result(vs ...uint32) []byte {
	var e encoder
	e.U32(vs...)
	return e.B
}

// errno returns the error number of an error of the connection manager.
func errno(err error) syscall.Errno {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, cm.ErrTooMany), errors.Is(err, cm.ErrTooManyListen):
		return syscall.ENOMEM
	case errors.Is(err, cm.ErrListening):
		return syscall.EADDRINUSE
	}
	return syscall.EINVAL
}

// CommandName returns the name of a command for a trace.
func CommandName(code uint32) string {
	if code < uint32(len(commandNames)) {
		return commandNames[code]
	}
	return fmt.Sprintf("command %d", code)
}

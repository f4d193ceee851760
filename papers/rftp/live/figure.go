package live

import (
	"fmt"
	"slices"
)

// Units of figures.
const (
	unitBW    = "Gb/s"
	unitFiles = "files/s"
	unitCPU   = "s/GB"
)

// kind is what a figure copies.
type kind int

const (
	memory    kind = iota // bytes from memory to memory
	file                  // one file
	smallTree             // a directory with many small files
)

// place is where files are.
type place int

const (
	nowhere place = iota
	tmpfs
	disk
)

// figure is a quantity that is measured with several tools.
type figure struct {
	name    string
	about   string
	kind    kind
	place   place
	streams int
	own     string // the tool that is compared with the others
	rivals  []rival
}

// rival is a tool that is compared with gorxe.
type rival struct {
	tool   string
	target float64 // the least ratio of the rates; 0: none
	cpu    bool    // compare the CPU time, too
}

func (f *figure) unit() string {
	if f.kind == smallTree {
		return unitFiles
	}
	return unitBW
}

// tools returns the names of all tools of the figure.
func (f *figure) tools() []string {
	list := []string{f.own}
	for _, r := range f.rivals {
		list = append(list, r.tool)
	}
	return list
}

// figures returns the figures on a veth pair.
func figures() (list []figure) {
	for _, n := range []int{1, 8} {
		list = append(list, figure{
			name: "mem" + suffix(n), about: "from memory to memory, " + streamCount(n),
			kind: memory, streams: n, own: toolRFTP,
			rivals: []rival{{tool: toolWrite, target: 0.9},
				{tool: toolGridFTP, target: 1, cpu: true}, {tool: toolGridFTPNoTSO, cpu: true}},
		})
	}
	for _, p := range []struct {
		name  string
		place place
	}{{"tmpfs", tmpfs}, {"disk", disk}} {
		list = append(list, figure{
			name: "file_" + p.name, about: "a file on " + p.name, kind: file, place: p.place,
			streams: 1, own: toolSend,
			rivals: []rival{{tool: toolGridFTP, target: 1, cpu: true},
				{tool: toolGridFTPNoTSO, cpu: true}, {tool: toolSendfile},
				{tool: toolSCP, target: 5}, {tool: toolRsync}, {tool: toolRsyncDaemon}},
		})
	}
	return append(list, figure{
		name: "tree", about: "many files of 4 KiB on tmpfs", kind: smallTree, place: tmpfs,
		streams: 1, own: toolSend,
		rivals: []rival{{tool: toolSCP, target: 10}, {tool: toolRsync, target: 3},
			{tool: toolRsyncDaemon}},
	})
}

// memoryFigures returns the figures on the link in memory: those without sockets and files.
func memoryFigures() (list []figure) {
	for _, f := range figures() {
		if f.kind == memory {
			f.rivals = slices.DeleteFunc(f.rivals, func(r rival) bool { return r.tool != toolWrite })
			f.rivals = append(f.rivals, rival{tool: toolWriteMany})
			list = append(list, f)
		}
	}
	return list
}

func suffix(streams int) string {
	if streams == 1 {
		return ""
	}
	return fmt.Sprintf("_%d", streams)
}

func streamCount(n int) string {
	if n == 1 {
		return "1 stream"
	}
	return fmt.Sprintf("%d streams", n)
}

// Names returns the names of all figures.
func Names() (list []string) {
	for _, f := range figures() {
		list = append(list, f.name)
	}
	return list
}

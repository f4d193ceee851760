package live

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Names of tools, which are the baselines in the output.
const (
	toolRFTP         = "rftp"     // transport/rftp
	toolSend         = "send"     // gorxe send and gorxe recv
	toolWrite        = "write_bw" // gorxe perf write-bw
	toolWriteMany    = "write_4m" // the same with 4 MiB of memory
	toolGridFTP      = "gridftp"  // blocks over TCP
	toolGridFTPNoTSO = "gridftp_notso"
	toolSendfile     = "sendfile" // io.Copy over TCP
	toolSCP          = "scp"
	toolRsync        = "rsync"  // over ssh
	toolRsyncDaemon  = "rsyncd" // without ssh
)

const (
	perfPort = 18515
	copyPort = 7491
)

// task is one copy.
type task struct {
	*figure
	from, to *host
	src, dst string // the file or tree, and the directory that gets it
	size     int64  // bytes
}

// result is what a process of "gorxe bench copy-side" prints.
type result struct {
	Bytes int64         `json:"bytes"`
	Took  time.Duration `json:"took_ns"`
	CPU   time.Duration `json:"cpu_ns"`
}

// run is how a tool does a task: a server and a client.
type run struct {
	server []string
	ready  func(ctx context.Context, p *process) error
	daemon bool // the server does not end by itself
	client []string
	// parse returns what the client measured; nil: the time of the client's process counts.
	parse func(out string) (result, error)
}

// run returns the commands of a tool.
func (b *bench) run(tool string, t *task) (r run, err error) {
	listens := func(port int) func(context.Context, *process) error {
		return func(ctx context.Context, p *process) error { return p.listens(ctx, port) }
	}
	says := func(text string) func(context.Context, *process) error {
		return func(ctx context.Context, p *process) error { return p.said(ctx, text) }
	}
	p := b.programs
	switch tool {
	case toolRFTP:
		r.server = b.side(t.to, roleRFTPReceive, t)
		r.client = b.side(t.from, roleRFTPSend, t)
		r.ready, r.parse = says(readyText), parseResult
	case toolWrite:
		r.server = []string{b.self, "perf", "write-bw", "-d", t.to.end.Iface, "--json"}
		r.client = []string{b.self, "perf", "write-bw", t.to.addr(), "-d", t.from.end.Iface,
			"-q", strconv.Itoa(t.streams), "-n", strconv.FormatInt(max(1, t.size/perfSize/
				int64(t.streams)), 10), "-s", strconv.Itoa(perfSize), "--json", "--report_gbits"}
		r.ready, r.parse = listens(perfPort), parsePerf
	case toolGridFTP, toolGridFTPNoTSO, toolSendfile:
		role := roleBlocks
		if tool == toolSendfile {
			role = roleStream
		}
		r.server = b.side(t.to, roleTCPReceive, t)
		r.client = b.side(t.from, role, t)
		r.ready = listens(copyPort)
		if t.kind == memory {
			r.parse = parseResult
		}
	case toolSend:
		r.server = []string{b.self, "recv", "-d", t.to.end.Iface, "--dir", t.dst, "--once"}
		r.client = []string{b.self, "send", "-d", t.from.end.Iface, t.src, t.to.addr() + ":"}
		r.ready = says(" receives on ")
	case toolSCP:
		r.server, r.daemon = p.sshDaemon(), true
		r.client = []string{p.scp, "-r", "-q", "-F", p.path("ssh_config"), t.src,
			t.to.addr() + ":" + t.dst}
		r.ready = listens(sshPort)
	case toolRsync:
		r.server, r.daemon = p.sshDaemon(), true
		r.client = []string{p.rsync, "-a", "-e", p.ssh + " -F " + p.path("ssh_config"), t.src,
			t.to.addr() + ":" + t.dst}
		r.ready = listens(sshPort)
	case toolRsyncDaemon:
		r.server, err = p.rsyncDaemon(t.dst)
		r.daemon = true
		r.client = []string{p.rsync, "-a", t.src, "rsync://" + t.to.addr() + "/dst/"}
		r.ready = listens(rsyncPort)
	default:
		err = fmt.Errorf("unknown tool %q", tool)
	}
	return r, err
}

// perfSize is the default size of a message of "gorxe perf write-bw".
const perfSize = 64 << 10

// parsePerf reads the output of "gorxe perf --json --report_gbits".
func parsePerf(out string) (r result, err error) {
	var row struct {
		Bytes      int64   `json:"bytes"`
		Iterations int64   `json:"iterations"`
		Average    float64 `json:"bw_average"`
		Unit       string  `json:"bw_unit"`
	}
	if err := json.Unmarshal([]byte(out), &row); err != nil {
		return r, fmt.Errorf("read the output of perf: %w", err)
	}
	if row.Average <= 0 || row.Unit != "Gb/sec" {
		return r, fmt.Errorf("perf measured %v %s", row.Average, row.Unit)
	}
	r.Bytes = row.Bytes * row.Iterations
	r.Took = time.Duration(float64(r.Bytes) * 8 / row.Average)
	return r, nil
}

func parseResult(out string) (r result, err error) {
	if err = json.Unmarshal([]byte(out), &r); err == nil && (r.Bytes <= 0 || r.Took <= 0) {
		err = fmt.Errorf("%d bytes in %v", r.Bytes, r.Took)
	}
	if err != nil {
		err = fmt.Errorf("read the result of a side: %w", err)
	}
	return r, err
}

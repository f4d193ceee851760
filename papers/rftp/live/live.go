package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// Config configures a run. Use DefaultConfig and change what differs.
type Config struct {
	Link   string   // kit.Veth or kit.Memory
	Rounds int      // each measures every tool once
	Size   int64    // of the file, and of what is sent from memory, in bytes
	Files  int      // of the tree
	Only   []string // names of figures; empty means all
	Tmpfs  string   // directory on tmpfs
	Disk   string   // directory on a disk
}

// DefaultConfig returns the configuration of "gorxe bench rftp" without flags.
func DefaultConfig() Config {
	return Config{Link: kit.Veth, Rounds: 5, Size: 1 << 30, Files: 100_000, Tmpfs: "/dev/shm",
		Disk: "/var/tmp"}
}

// pairMTU is the MTU of the veth pair: path MTU 4096 with all headers.
const pairMTU = 4200

// bench is a run.
type bench struct {
	Config
	self     string // path of this program
	figures  []figure
	hosts    [2]*host // the first one sends
	datapath string
	programs *programs
	softirqs kit.Softirqs
	pair     *veth.Pair
	keys     string // directory
	places   map[place]string
	sources  map[sourceName]source
	samples  map[string]map[string][]sample // by figure and tool; one per round
	skipped  []string                       // what was left out and why
}

// Unavailable reports whether err, which Run returned, means that this machine cannot measure on a
// veth pair.
func Unavailable(err error) bool { return testbed.Unavailable(err) }

// Run measures the figures. It shows its progress on stderr if that is a terminal.
func Run(ctx context.Context, c Config, stderr io.Writer) (r *Report, err error) {
	b := &bench{Config: c, places: map[place]string{}, sources: map[sourceName]source{},
		samples: map[string]map[string][]sample{}}
	if b.self, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	list := figures()
	if c.Link == kit.Memory {
		list = memoryFigures()
	}
	b.figures = slices.DeleteFunc(list, func(f figure) bool {
		return len(c.Only) > 0 && !slices.Contains(c.Only, f.name)
	})
	if c.Link == kit.Memory {
		b.datapath = "link in memory"
		return b.rounds(ctx, stderr, b.inMemory)
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(ctx, stderr); err != nil {
		return nil, err
	}
	return b.rounds(ctx, stderr, b.measure)
}

// rounds measures all tools of all figures in every round.
func (b *bench) rounds(
	ctx context.Context, stderr io.Writer,
	measure func(ctx context.Context, f *figure, tool string) (sample, error),
) (*Report, error) {
	var list [][]kit.Step
	for i := range b.figures {
		f := &b.figures[i]
		samples := map[string][]sample{}
		b.samples[f.name] = samples
		var steps []kit.Step
		for _, tool := range f.tools() {
			steps = append(steps, kit.Step{Experiment: f.name, Side: tool,
				Run: func(ctx context.Context, _ int) error {
					s, err := measure(ctx, f, tool)
					samples[tool] = append(samples[tool], s)
					return err
				}})
		}
		list = append(list, steps)
	}
	if err := kit.Rounds(ctx, b.Rounds, list, stderr); err != nil {
		return nil, err
	}
	return b.report(), nil
}

// open creates the veth pair and the files.
func (b *bench) open(ctx context.Context, stderr io.Writer) error {
	pair, err := veth.New(veth.Options{MTU: pairMTU, Offloads: true})
	if err != nil {
		return err
	}
	// The hosts keep the namespaces.
	b.hosts = [2]*host{newHost(&pair.A), newHost(&pair.B)}
	b.pair = pair
	port, err := xdp.Open(pair.A.Iface, xdp.Options{NetNS: pair.A.Fd()})
	if err != nil {
		return err
	}
	b.datapath = port.Info().Datapath
	if err := port.Close(); err != nil {
		return err
	}
	b.softirqs = kit.FindSoftirqs()
	if b.keys, err = os.MkdirTemp("", "gorxe-bench-"); err != nil {
		return err
	}
	if b.programs, err = findPrograms(ctx, b.keys); err != nil {
		return err
	}
	if err := b.openPlaces(); err != nil {
		return err
	}
	if err := b.leaveOut(ctx); err != nil {
		return err
	}
	for _, s := range b.skipped {
		fmt.Fprintf(stderr, "Left out: %s.\n", s)
	}
	for i := range b.figures {
		if err := b.prepare(ctx, &b.figures[i]); err != nil {
			if cli.Interrupted(ctx) {
				err = cli.ErrInterrupted
			}
			return err
		}
	}
	return nil
}

// skip leaves out figures, and says why.
func (b *bench) skip(what, why string, which func(f *figure) bool) {
	n := len(b.figures)
	b.figures = slices.DeleteFunc(b.figures, func(f figure) bool { return which(&f) })
	if len(b.figures) < n {
		b.skipped = append(b.skipped, what+": "+why)
	}
}

// leaveOut removes the tools that do not work here from the figures.
func (b *bench) leaveOut(ctx context.Context) error {
	why := map[string]string{}
	for _, tool := range []string{toolSCP, toolRsync, toolRsyncDaemon} {
		why[tool] = b.programs.missing(tool)
	}
	uses := func(tool string) bool {
		return slices.ContainsFunc(b.figures, func(f figure) bool {
			return slices.Contains(f.tools(), tool)
		})
	}
	if (why[toolSCP] == "" || why[toolRsync] == "") && (uses(toolSCP) || uses(toolRsync)) {
		if err := b.programs.sshWorks(ctx, b.hosts[0], b.hosts[1]); err != nil {
			if ctx.Err() != nil {
				return kit.Ended(ctx)
			}
			for _, tool := range []string{toolSCP, toolRsync} {
				if why[tool] == "" {
					why[tool] = fmt.Sprintf("ssh does not work: %v", err)
				}
			}
		}
	}
	for _, tool := range []string{toolSCP, toolRsync, toolRsyncDaemon} {
		if why[tool] == "" || !uses(tool) {
			continue
		}
		b.skipped = append(b.skipped, tool+": "+why[tool])
		for i := range b.figures {
			b.figures[i].rivals = slices.DeleteFunc(b.figures[i].rivals,
				func(r rival) bool { return r.tool == tool })
		}
	}
	return nil
}

// close removes everything.
func (b *bench) close() (err error) {
	for _, h := range b.hosts {
		if h != nil {
			err = errors.Join(err, h.close())
		}
	}
	if b.pair != nil {
		err = errors.Join(err, b.pair.Close())
	}
	dirs := []string{b.keys, b.places[tmpfs], b.places[disk]}
	for _, dir := range dirs {
		if dir != "" {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return err
}

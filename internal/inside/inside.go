package inside

import (
	"log/slog"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// CMHandler handles an event of the connection manager m. The owner of the loop calls it.
type CMHandler func(now cm.Time, m *cm.CM, e cm.Event)

// ServiceHost is a node service. Its own device is the one that is opened with the option that Host
// returns.
type ServiceHost interface {
	driver.Member // of the device itself, slot 0
	// Start lets programs join. port is that of the device, which is not running yet.
	Start(port driver.Port) error
	// Forward passes a packet to QP1 on, and returns true, if it is for another program. Only the
	// loop's owner calls it.
	Forward(p *bth.Packet) bool
	// SetLog sets the function that logs what programs of a user do. It limits the lines of each
	// user, and does not block.
	SetLog(log func(level slog.Level, uid uint32, text string, attrs ...slog.Attr))
}

// Objects has the numbers of the verbs objects of a device, and the bytes that count for
// roce.Expert.MaxMemory.
type Objects struct {
	PDs    int    `json:"pds"`
	CQs    int    `json:"cqs"`
	QPs    int    `json:"qps"`
	SRQs   int    `json:"srqs"`
	MRs    int    `json:"mrs"`
	Memory uint64 `json:"memory_bytes"`
}

// MW is a memory window with keys as in verbs.
type MW interface {
	Key() mr.Key // the first key, or that of the latest bind
	Close() error
}

// The parameters are objects of package roce, which this package cannot import. Other types cause a
// panic.
var (
	// Loop returns the loop of a *roce.Device.
	Loop func(device any) *loop.Loop
	// Engine returns the engine of a *roce.Device. Only the loop's owner may use it.
	Engine func(device any) *qp.Engine
	// QP returns the engine's part of a *roce.QP.
	QP func(qp any) *qp.QP
	// CQ returns the engine's part of a *roce.CQ.
	CQ func(cq any) *qp.CQ
	// SRQ returns the engine's part of a *roce.SRQ.
	SRQ func(srq any) *qp.SRQ
	// AH returns the engine's part of a *roce.AH.
	AH func(ah any) *qp.AH
	// ResizeCQ changes the number of completions that a *roce.CQ holds. As the loop's owner it
	// calls prepare, which polls all completions, and resizes the CQ if prepare returns true.
	ResizeCQ func(cq any, depth int, prepare func() bool) error
	// Backing returns a roce.MROption: the memory of the region is a copy of memory of another
	// process.
	Backing func(b mr.Backing) any
	// AllocMW creates a tagged window in a *roce.PD; see mr.Table.AllocTaggedWindow.
	AllocMW func(pd any, typ mr.WindowType) (MW, error)

	// Host returns a roce.Option for roce.Open: the device hosts a node service.
	Host func(s ServiceHost) any
	// Announce tells the node service of a *roce.Device, if there is one, that a listener of its
	// connection manager is about to be created. Withdraw must be called after the end of the
	// listener. Both may block, and the loop's owner must not call Announce.
	Announce func(device any, id cm.ServiceID) error
	Withdraw func(device any, id cm.ServiceID)

	// CM runs f as the owner of the loop of a *roce.Device. Then it delivers the events and sends
	// the messages that f has caused. It returns false if the device is closed.
	CM func(device any, f func(now cm.Time, m *cm.CM)) bool
	// HandleConn makes h get the events of a communication ID of a *roce.Device. The last one is
	// EventClosed. path is the resolved path to the peer; nil means the path of the peer's request.
	// Only the loop's owner may call it, before it polls events.
	HandleConn func(device any, id cm.CommID, gids bth.GIDPair, path *frame.Path, h CMHandler)
	// HandleListener makes h get the requests to a listener of a *roce.Device, until Unlisten and
	// another call without h. Only the loop's owner may call it.
	HandleListener func(device any, id cm.ListenerID, h CMHandler)

	// ProgramName returns a roce.Option: the name under which a node service lists the device,
	// instead of that of this program.
	ProgramName func(name string) any

	// Charge counts n bytes of memory that a *roce.Device does not know for its limit, or returns
	// roce.ErrNoMemory. Discharge must be called when the memory is free again.
	Charge    func(device any, n int, what string) error
	Discharge func(device any, n int)

	// Report returns the state of a *roce.Device and of at most maxQPs of its queue pairs as JSON.
	// Package internal/status decodes it. It costs a round trip to the device's thread for each 64
	// QPs.
	Report func(device any, maxQPs int) []byte
)

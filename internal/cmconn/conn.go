package cmconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unicode"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

// sendDepth is the depth of the send queue: one work request of the caller and one probe.
const sendDepth = 4

// Config describes a Conn.
type Config struct {
	Slots     int           // receives to keep posted, and messages that may wait for Receive
	SlotBytes int           // largest message
	Memory    int           // additional bytes of MR for the caller, see Conn.Memory
	Access    roce.Access   // rights of MR; 0 means roce.LocalWrite
	Quiet     time.Duration // silence of the peer after which it is probed; 0: never
	GIDIndex  *int          // of the local GID; nil: the route selects it
}

// Conn is a connection for messages. Its methods must be called by one goroutine at a time, except
// CM. The peer's accesses to MR and the methods may run concurrently.
type Conn struct {
	*endpoint.Endpoint
	cfg Config
	cm  *roce.Conn // nil before Dial or Accept

	wcs      []roce.WC
	received [][]byte // messages that Receive has not returned, at most cfg.Slots
	pending  int      // work requests of the caller that have not completed
	probing  bool     // a probe has not completed
	err      error    // of a completion; nothing can complete after it
}

// New creates the queue pair and the memory and posts the receives.
func New(dev *roce.Device, cfg Config) (*Conn, error) {
	if cfg.Access == 0 {
		cfg.Access = roce.LocalWrite
	}
	e, err := endpoint.New(dev, endpoint.Config{
		QP:     roce.QPConfig{SendDepth: sendDepth, RecvDepth: cfg.Slots, GIDIndex: cfg.GIDIndex},
		Memory: (cfg.Slots+1)*cfg.SlotBytes + cfg.Memory, Access: cfg.Access,
	})
	if err != nil {
		return nil, err
	}
	c := &Conn{Endpoint: e, cfg: cfg, wcs: make([]roce.WC, cfg.Slots)}
	for i := range cfg.Slots {
		if err := c.postRecv(i); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// Dial connects to the listener at addr. If the peer rejects the connection with a text in its
// private data, as gorxe's servers do, the error contains it.
func (c *Conn) Dial(ctx context.Context, addr netip.AddrPort, o roce.DialOptions) (err error) {
	c.cm, err = c.Dev.Dial(ctx, addr, c.QP, o)
	rejected := new(roce.RejectError)
	if errors.As(err, &rejected) {
		if why := reason(rejected.PrivateData); why != "" {
			return fmt.Errorf("%w: the server says %q", err, why)
		}
	}
	return err
}

// reason returns the text that the private data of a rejection contains, or "" for other data.
func reason(private []byte) string {
	text := bytes.TrimRight(private, "\x00")
	if bytes.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsPrint(r) }) {
		return ""
	}
	return string(text)
}

// Accept accepts a connection request.
func (c *Conn) Accept(ctx context.Context, r *roce.Request, o roce.AcceptOptions) (err error) {
	c.cm, err = r.Accept(ctx, c.QP, o)
	return err
}

// CM returns the connection of the connection manager, or nil before Dial or Accept.
func (c *Conn) CM() *roce.Conn { return c.cm }

// Memory returns the offset in MR of the caller's memory.
func (c *Conn) Memory() int { return (c.cfg.Slots + 1) * c.cfg.SlotBytes }

// Close ends the connection and destroys the queue pair and the memory.
func (c *Conn) Close() error {
	var err error
	if c.cm != nil {
		err = c.cm.Close()
	}
	return errors.Join(err, c.Endpoint.Close())
}

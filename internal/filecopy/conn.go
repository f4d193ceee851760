package filecopy

import (
	"context"
	"errors"
)

// Block is memory of a connection. It belongs to the caller that got it last.
type Block struct {
	// Data is the memory. Its length is the block size; it begins on a page boundary.
	Data []byte
	// Len is the number of bytes that are in use.
	Len int
	// Offset is the position of the data in a file.
	Offset int64
	// CRC is the CRC32C of Data[:Len].
	CRC uint32
	// Session is the number of the session that a received block belongs to, and Seq the number of
	// the block in the session, from 0.
	Session, Seq uint32
	// Handle belongs to the connection.
	Handle any
}

// ErrStopped means that the peer does not want the blocks of a session any more (Conn.Refuse).
var ErrStopped = errors.New("the receiver has stopped")

// MaxMessage is the size of the largest message.
const MaxMessage = 4000

// Conn is a connection to a peer. Its methods are safe for concurrent use. When the connection has
// ended, all of them return the reason.
type Conn interface {
	// SendMessage sends a message of at most MaxMessage bytes. It waits while too many messages
	// were not read by the peer.
	SendMessage(ctx context.Context, msg []byte) error
	// ReceiveMessage waits for the next message. Messages arrive in order.
	ReceiveMessage(ctx context.Context) ([]byte, error)

	// Open begins a session in which this side sends blocks. It does not wait for the peer. param
	// reaches the peer before the blocks of the session.
	Open(ctx context.Context, param uint64) (Session, error)
	// GetFree waits for a block to fill.
	GetFree(ctx context.Context) (*Block, error)
	// GetReady waits for the next event of the peer's sessions.
	GetReady(ctx context.Context) (Ready, error)
	// PutFree gives back a block of GetFree or GetReady.
	PutFree(b *Block)
	// Refuse makes the connection drop the blocks of a session of the peer from now on.
	Refuse(session uint32, text string)
}

// Session is a sequence of blocks.
type Session interface {
	// Send sends a block and gives it back. It does not wait. Blocks of all sessions of a
	// connection are sent in the order of the calls. After an error the caller still has the block;
	// ErrStopped is about this session only.
	Send(b *Block) error
	// End ends the session. It does not wait for its blocks to be received.
	End() error
	// Abort ends the session. Blocks that were not received may be lost.
	Abort(text string)
}

// Ready is an event at the receiver of sessions.
type Ready struct {
	Kind    ReadyKind
	Session uint32
	Param   uint64 // Opened: that of Open
	Block   *Block // Data
}

// ReadyKind is the kind of a Ready.
type ReadyKind uint8

// The kinds of events.
const (
	Opened  ReadyKind = 1 + iota // the peer has begun a session; its blocks follow
	Data                         // a block; blocks of a session may come in another order
	Ended                        // all blocks of the session were delivered
	Aborted                      // the session ended before it was complete
)

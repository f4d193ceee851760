package filecopy

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// Messenger is the part of a Conn that the handshake uses.
type Messenger interface {
	SendMessage(ctx context.Context, msg []byte) error
	ReceiveMessage(ctx context.Context) ([]byte, error)
}

// Errors of the handshake.
var (
	// ErrToken means that the peer does not know the token, or that this side has none.
	ErrToken = errors.New("token")
	// ErrRefused means that the server has refused the request.
	ErrRefused = errors.New("refused")
)

// Bounds of tokens, in bytes.
const (
	minToken = 8
	maxToken = 4096
)

// Token is a secret that clients and server share. It is never sent: each side proves that it knows
// the token by an HMAC over random numbers of both.
type Token []byte

// ReadToken reads a token from a file. Space at its ends does not count.
func ReadToken(name string) (Token, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	t := bytes.TrimSpace(data)
	if len(t) < minToken || len(t) > maxToken {
		return nil, fmt.Errorf("the token in %s has %d bytes: use %d to %d", name, len(t), minToken,
			maxToken)
	}
	return t, nil
}

// transcript is what both sides prove to have seen.
type transcript struct {
	token          Token
	client, server [record.NonceSize]byte
	request        []byte
}

// proof returns the proof of one side. The request is part of it, so nobody can replace it.
func (t *transcript) proof(role string) (sum [record.ProofSize]byte) {
	h := hmac.New(sha256.New, t.token)
	h.Write([]byte("gorxe send " + role + "\x00"))
	h.Write(t.client[:])
	h.Write(t.server[:])
	request := sha256.Sum256(t.request)
	h.Write(request[:])
	h.Sum(sum[:0])
	return sum
}

const (
	clientRole = "client"
	serverRole = "server"
)

// Connect makes a request to the server. It fails with ErrToken or ErrRefused.
func Connect(
	ctx context.Context, conn Messenger, token Token, r *record.Request,
) (*record.Ready, error) {
	t := transcript{token: token, request: r.Append(nil)}
	_, _ = rand.Read(t.client[:]) // does not fail
	h := record.Hello{Version: record.Version, Nonce: t.client}
	if err := conn.SendMessage(ctx, h.Append(nil)); err != nil {
		return nil, err
	}
	msg, err := expect(ctx, conn, record.MessageChallenge)
	if err != nil {
		return nil, err
	}
	c, err := record.ParseChallenge(msg)
	switch {
	case err != nil:
		return nil, err
	case c.Version != record.Version:
		return nil, fmt.Errorf("the receiver speaks version %d of the protocol, this side version %d: "+
			"use the same version of gorxe", c.Version, record.Version)
	case c.Token && token == nil:
		return nil, fmt.Errorf("%w: the receiver demands one: use --token-file", ErrToken)
	case !c.Token && token != nil:
		return nil, fmt.Errorf("%w: the receiver has none, so it cannot prove who it is: start it "+
			"with --token-file, or omit the flag here", ErrToken)
	}
	t.server = c.Nonce
	proof := t.proof(clientRole)
	if err := sendRequest(ctx, conn, append(proof[:], t.request...)); err != nil {
		return nil, err
	}
	if msg, err = expect(ctx, conn, record.MessageReady); err != nil {
		return nil, err
	}
	ready, err := record.ParseReady(msg)
	if err != nil {
		return nil, err
	}
	if want := t.proof(serverRole); !hmac.Equal(want[:], ready.Proof[:]) {
		return nil, fmt.Errorf("%w: the receiver has another one", ErrToken)
	}
	return &ready, nil
}

// expect waits for a message of a kind.
func expect(ctx context.Context, conn Messenger, want record.Message) ([]byte, error) {
	msg, err := conn.ReceiveMessage(ctx)
	if err != nil {
		return nil, err
	}
	kind, rest, err := record.Split(msg)
	switch {
	case err != nil:
		return nil, err
	case kind == record.MessageRefused:
		return nil, fmt.Errorf("%w: %s", ErrRefused, Printable(string(rest)))
	case kind != want:
		return nil, fmt.Errorf("%w: message %d instead of %d", record.ErrFormat, kind, want)
	}
	return rest, nil
}

// Printable returns a text that a peer may have chosen, so that it cannot control a terminal: in
// quotes, if it is empty or contains characters that cannot be printed.
func Printable(text string) string {
	printable := func(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !printable(r) }) < 0 {
		return text
	}
	return strconv.Quote(text)
}

// sendRequest sends a request in as many messages as it needs. The byte after the kind says whether
// more follow.
func sendRequest(ctx context.Context, conn Messenger, data []byte) error {
	const most = MaxMessage - 2
	for {
		n, more := min(len(data), most), byte(0)
		if n < len(data) {
			more = 1
		}
		msg := append([]byte{byte(record.MessageRequest), more}, data[:n]...)
		if err := conn.SendMessage(ctx, msg); err != nil {
			return err
		}
		if data = data[n:]; more == 0 {
			return nil
		}
	}
}

// Offer is a request of a client that knows the token.
type Offer struct {
	*record.Request

	conn Messenger
	t    transcript
}

// Serve receives the request of a client. It fails with ErrToken. The caller accepts or refuses the
// Offer.
func Serve(ctx context.Context, conn Messenger, token Token) (*Offer, error) {
	o := &Offer{conn: conn, t: transcript{token: token}}
	msg, err := expect(ctx, conn, record.MessageHello)
	if err != nil {
		return nil, err
	}
	h, err := record.ParseHello(msg)
	if err != nil {
		return nil, err
	}
	o.t.client = h.Nonce
	_, _ = rand.Read(o.t.server[:])
	c := record.Challenge{Version: record.Version, Token: token != nil, Nonce: o.t.server}
	if err := conn.SendMessage(ctx, c.Append(nil)); err != nil {
		return nil, err
	}
	if h.Version != record.Version {
		return nil, fmt.Errorf("the client speaks version %d of the protocol, this side version %d",
			h.Version, record.Version)
	}
	data, err := receiveRequest(ctx, conn)
	if err != nil {
		return nil, err
	}
	if len(data) < record.ProofSize {
		return nil, fmt.Errorf("%w: a request of %d bytes", record.ErrFormat, len(data))
	}
	o.t.request = data[record.ProofSize:]
	if want := o.t.proof(clientRole); token != nil &&
		!hmac.Equal(want[:], data[:record.ProofSize]) {
		err := fmt.Errorf("%w: it is wrong", ErrToken)
		return nil, errors.Join(err, o.Refuse(ctx, err))
	}
	o.Request, err = record.ParseRequest(o.t.request)
	return o, err
}

func receiveRequest(ctx context.Context, conn Messenger) (data []byte, err error) {
	for {
		msg, err := expect(ctx, conn, record.MessageRequest)
		if err != nil {
			return nil, err
		}
		if len(msg) == 0 || len(data)+len(msg) > record.MaxRequest {
			return nil, fmt.Errorf("%w: the request is too long", record.ErrFormat)
		}
		data = append(data, msg[1:]...)
		if msg[0] == 0 {
			return data, nil
		}
	}
}

// Accept tells the client that the copy begins. It sets the proof in r.
func (o *Offer) Accept(ctx context.Context, r record.Ready) error {
	r.Proof = o.t.proof(serverRole)
	return o.conn.SendMessage(ctx, r.Append(nil))
}

// Refuse tells the client why its request is refused.
func (o *Offer) Refuse(ctx context.Context, why error) error {
	text := why.Error()
	msg := append([]byte{byte(record.MessageRefused)}, text[:min(len(text), record.MaxText)]...)
	return o.conn.SendMessage(ctx, msg)
}

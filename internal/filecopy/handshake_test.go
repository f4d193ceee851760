package filecopy_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/filecopytest"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// tap changes messages of the client on their way.
type tap struct {
	filecopy.Messenger

	change func(msg []byte) []byte
}

func (t tap) SendMessage(ctx context.Context, msg []byte) error {
	return t.Messenger.SendMessage(ctx, t.change(msg))
}

func TestHandshake(t *testing.T) {
	good, bad := filecopy.Token("correct horse"), filecopy.Token("wrong horse")
	long := &record.Request{Target: "a/b", DryRun: true}
	for range 30 {
		long.Rules = append(long.Rules,
			record.Rule{Exclude: true, Pattern: strings.Repeat("x", 900)})
	}
	for _, c := range []struct {
		name           string
		client, server filecopy.Token
		request        *record.Request
		change         func(msg []byte) []byte
		want, wantS    error // nil: success
	}{
		{name: "without token"},
		{name: "with token", client: good, server: good},
		{name: "long request", client: good, server: good, request: long},
		{name: "client has none", server: good, want: filecopy.ErrToken, wantS: context.Canceled},
		{name: "server has none", client: good, want: filecopy.ErrToken, wantS: context.Canceled},
		{name: "wrong", client: bad, server: good, want: filecopy.ErrRefused,
			wantS: filecopy.ErrToken},
		{name: "changed request", client: good, server: good, want: filecopy.ErrRefused,
			wantS: filecopy.ErrToken, change: func(msg []byte) []byte {
				if msg[0] == byte(record.MessageRequest) {
					msg = append([]byte(nil), msg...)
					msg[len(msg)-1] ^= 1
				}
				return msg
			}},
		{name: "other version", want: context.Canceled, wantS: errors.ErrUnsupported,
			change: func(msg []byte) []byte {
				if msg[0] == byte(record.MessageHello) {
					msg[2]++
				}
				return msg
			}},
		{name: "empty request", want: context.Canceled, wantS: record.ErrFormat,
			change: func(msg []byte) []byte {
				if msg[0] == byte(record.MessageRequest) {
					msg = msg[:2]
				}
				return msg
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := filecopytest.New(filecopytest.Options{})
			defer a.Close(nil)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if c.request == nil {
				c.request = &record.Request{Target: "dir"}
			}
			var client filecopy.Messenger = a
			if c.change != nil {
				client = tap{a, c.change}
			}
			served := make(chan error, 1)
			var offer *filecopy.Offer
			go func() {
				var err error
				if offer, err = filecopy.Serve(ctx, b, c.server); err == nil {
					err = offer.Accept(ctx, record.Ready{Single: true})
				}
				served <- err
				if err != nil {
					time.Sleep(10 * time.Millisecond)
					cancel()
				}
			}()
			ready, err := filecopy.Connect(ctx, client, c.client, c.request)
			if err != nil {
				cancel()
			}
			serr := <-served
			if c.want == nil {
				if err != nil || serr != nil || !ready.Single ||
					!reflect.DeepEqual(offer.Request, c.request) {
					t.Fatalf("Connect() = %+v, %v; Serve() = %v", ready, err, serr)
				}
				return
			}
			if !errors.Is(err, c.want) {
				t.Errorf("Connect() = %v, want %v", err, c.want)
			}
			if serr == nil || c.wantS != errors.ErrUnsupported && !errors.Is(serr, c.wantS) {
				t.Errorf("Serve() = %v, want %v", serr, c.wantS)
			}
		})
	}
}

// A server that knows the nonces of the client, but not the token, is recognized.
func TestFalseServer(t *testing.T) {
	a, b := filecopytest.New(filecopytest.Options{})
	defer a.Close(nil)
	go func() {
		_, _ = b.ReceiveMessage(t.Context())
		c := record.Challenge{Version: record.Version, Token: true}
		_ = b.SendMessage(t.Context(), c.Append(nil))
		_, _ = b.ReceiveMessage(t.Context())
		_ = b.SendMessage(t.Context(), (&record.Ready{}).Append(nil))
	}()
	_, err := filecopy.Connect(t.Context(), a, filecopy.Token("correct horse"), &record.Request{})
	if !errors.Is(err, filecopy.ErrToken) {
		t.Errorf("Connect() = %v, want ErrToken", err)
	}
}

// The reason of a server cannot control the terminal on which the client's error is printed.
func TestRefusedText(t *testing.T) {
	a, b := filecopytest.New(filecopytest.Options{})
	defer a.Close(nil)
	go func() {
		if o, err := filecopy.Serve(t.Context(), b, nil); err == nil {
			_ = o.Refuse(t.Context(), errors.New("no\x1b[31m"))
		}
	}()
	_, err := filecopy.Connect(t.Context(), a, nil, &record.Request{})
	if !errors.Is(err, filecopy.ErrRefused) || err.Error() != `refused: "no\x1b[31m"` {
		t.Errorf("Connect() = %q", err)
	}
}

func TestReadToken(t *testing.T) {
	name := filepath.Join(t.TempDir(), "token")
	for text, ok := range map[string]bool{"": false, "short\n": false, "long enough\n": true,
		strings.Repeat("x", 5000): false} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
		token, err := filecopy.ReadToken(name)
		if (err == nil) != ok || ok && string(token) != strings.TrimSpace(text) {
			t.Errorf("ReadToken() of %d bytes = %q, %v", len(text), token, err)
		}
	}
	if _, err := filecopy.ReadToken(name + "x"); err == nil {
		t.Error("ReadToken() of a missing file = nil")
	}
}

package record

import "encoding/binary"

// Message is the kind of a message, its first byte.
type Message uint8

// The kinds of messages. The client is the side that connects.
const (
	MessageHello     Message = 1 + iota // client: Hello
	MessageChallenge                    // server: Challenge
	MessageRequest                      // client: a part of Request
	MessageReady                        // server: Ready
	MessageRefused                      // server: a text that says why
	MessageAnswers                      // sink: answers, as many as fit
	MessageSummary                      // sink: Summary
)

// Version is the version of the protocol. Sides with different versions do not copy.
const Version = 1

// Sizes of parts of messages in bytes.
const (
	NonceSize = 16
	ProofSize = 32
	// MaxRequest is the size of the largest Request.
	MaxRequest = 64 << 10
	maxPath    = 4095
	maxList    = 1000 // sources or patterns
	maxPattern = 1000
)

// Hello begins the conversation.
type Hello struct {
	Version uint16
	Nonce   [NonceSize]byte
}

// Challenge is the answer of the server.
type Challenge struct {
	Version uint16
	Token   bool // the client must prove that it knows the server's token
	Nonce   [NonceSize]byte
}

// Append appends the message.
func (h *Hello) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(append(b, byte(MessageHello)), h.Version)
	return append(b, h.Nonce[:]...)
}

// Append appends the message.
func (c *Challenge) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(append(b, byte(MessageChallenge)), c.Version)
	return append(append(b, flag(c.Token)), c.Nonce[:]...)
}

// Split returns the kind of a message and its contents.
func Split(msg []byte) (Message, []byte, error) {
	if len(msg) == 0 {
		return 0, nil, formatError("an empty message")
	}
	return Message(msg[0]), msg[1:], nil
}

// ParseHello decodes the contents of a Hello message.
func ParseHello(msg []byte) (h Hello, err error) {
	f := fields{data: msg}
	h.Version = f.u16()
	if !f.short && h.Version != Version { // the rest may have another format
		return h, nil
	}
	copy(h.Nonce[:], f.take(NonceSize))
	return h, f.end("the first message")
}

// ParseChallenge decodes the contents of a Challenge message.
func ParseChallenge(msg []byte) (c Challenge, err error) {
	f := fields{data: msg}
	c.Version = f.u16()
	if !f.short && c.Version != Version {
		return c, nil
	}
	c.Token = f.u8() != 0
	copy(c.Nonce[:], f.take(NonceSize))
	return c, f.end("the second message")
}

// Overwrite says which files of the sink are replaced.
type Overwrite uint8

// The values of Overwrite.
const (
	Always Overwrite = iota // all that differ in size or time
	Older                   // those whose time is before that of the source's file
	Never                   // none
)

// String returns the word of the flag.
func (o Overwrite) String() string {
	return [...]string{"always", "older", "never"}[min(o, Never)]
}

// Rule includes or excludes names.
type Rule struct {
	Exclude bool
	Pattern string
}

// Request says what the client wants.
type Request struct {
	Pull      bool // the server is the source
	Overwrite Overwrite
	Delete    bool // delete what the source does not have
	DryRun    bool
	// Single means that the only source is a file, so that Target can be its new name. The source
	// of a pull tells it in Ready.
	Single  bool
	Target  string   // of the server below its directory; for a push
	Sources []string // paths of the server below its directory; for a pull
	Rules   []Rule
	Limit   uint64 // bytes per second that a pull may use; 0: no limit
	// Top has the attributes of the directory whose contents a push sends into the target, if there
	// is one such source. A target that does not exist gets them. That of a pull is in Ready.
	Top *Attributes
}

const (
	requestPull = 1 << iota
	requestDelete
	requestDryRun
	requestSingle
	requestTop
)

// Append appends the request, without the kind of the message.
func (r *Request) Append(b []byte) []byte {
	flags := flag(r.Pull)*requestPull | flag(r.Delete)*requestDelete |
		flag(r.DryRun)*requestDryRun | flag(r.Single)*requestSingle |
		flag(r.Top != nil)*requestTop
	b = append(b, flags, byte(r.Overwrite))
	b = binary.BigEndian.AppendUint64(b, r.Limit)
	b = appendText(b, r.Target)
	b = binary.AppendUvarint(b, uint64(len(r.Sources)))
	for _, s := range r.Sources {
		b = appendText(b, s)
	}
	b = binary.AppendUvarint(b, uint64(len(r.Rules)))
	for _, rule := range r.Rules {
		b = appendText(append(b, flag(rule.Exclude)), rule.Pattern)
	}
	return appendOptional(b, r.Top)
}

// ParseRequest decodes a request.
func ParseRequest(data []byte) (*Request, error) {
	f := fields{data: data}
	flags := f.u8()
	r := &Request{Pull: flags&requestPull != 0, Delete: flags&requestDelete != 0,
		DryRun: flags&requestDryRun != 0, Single: flags&requestSingle != 0}
	r.Overwrite = Overwrite(f.u8())
	r.Limit = f.u64()
	r.Target = f.text(maxPath)
	for range min(f.number(), maxList) {
		r.Sources = append(r.Sources, f.text(maxPath))
	}
	for range min(f.number(), maxList) {
		exclude := f.u8() != 0
		r.Rules = append(r.Rules, Rule{exclude, f.text(maxPattern)})
	}
	r.Top = f.optional(flags&requestTop != 0)
	if r.Overwrite > Never {
		return nil, formatError("overwrite mode %d", r.Overwrite)
	}
	return r, f.end("a request")
}

// Check returns an error if the request exceeds the limits of the protocol.
func (r *Request) Check() error {
	parsed, err := ParseRequest(r.Append(nil))
	switch {
	case err != nil || len(r.Append(nil)) > MaxRequest || len(parsed.Sources) < len(r.Sources) ||
		len(parsed.Rules) < len(r.Rules):
		return formatError("the request is too long: use fewer or shorter names and patterns")
	}
	return nil
}

// Ready tells the client that the copy begins.
type Ready struct {
	Proof  [ProofSize]byte // the server knows the token
	Single bool            // Request.Single of a pull
	Top    *Attributes     // Request.Top of a pull
}

const (
	readySingle = 1 << iota
	readyTop
)

// Append appends the message.
func (r *Ready) Append(b []byte) []byte {
	b = append(append(b, byte(MessageReady)), r.Proof[:]...)
	b = append(b, flag(r.Single)*readySingle|flag(r.Top != nil)*readyTop)
	return appendOptional(b, r.Top)
}

// ParseReady decodes the contents of a Ready message.
func ParseReady(msg []byte) (r Ready, err error) {
	f := fields{data: msg}
	copy(r.Proof[:], f.take(ProofSize))
	flags := f.u8()
	r.Single, r.Top = flags&readySingle != 0, f.optional(flags&readyTop != 0)
	return r, f.end("the answer")
}

// Summary is what the sink has done. Everything that it counts is on disk.
type Summary struct {
	Stored  uint64 // entries
	Skipped uint64 // entries
	Failed  uint64 // entries
	Deleted uint64 // names
	Bytes   uint64 // of stored files
	Resumed uint64 // bytes of stored files that earlier runs had transferred
}

// Append appends the message.
func (s *Summary) Append(b []byte) []byte {
	b = append(b, byte(MessageSummary))
	for _, v := range []uint64{s.Stored, s.Skipped, s.Failed, s.Deleted, s.Bytes, s.Resumed} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// ParseSummary decodes the contents of a Summary message.
func ParseSummary(msg []byte) (s Summary, err error) {
	f := fields{data: msg}
	for _, v := range []*uint64{&s.Stored, &s.Skipped, &s.Failed, &s.Deleted, &s.Bytes,
		&s.Resumed} {
		*v = f.u64()
	}
	return s, f.end("the summary")
}

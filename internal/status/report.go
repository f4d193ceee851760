package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// Report is what a program has reported about its device.
type Report struct {
	Slot     uint8
	PID, UID int
	Name     string // of the program
	Joined   time.Time
	Body     []byte // JSON of inside.Report; empty: the program did not answer in time
}

// Limits of a snapshot.
const (
	// MaxQPs is the largest number of queue pairs of a program.
	MaxQPs = 200
	// maxAllQPs is the largest number of queue pairs of all programs.
	maxAllQPs = 4096
	// maxName and maxText are the longest name of a program and the longest other text, in bytes.
	maxName = 64
	maxText = 512
)

// body is the JSON of a report.
type body struct {
	Counters map[string]uint64 `json:"counters"`
	RTTs     Histogram         `json:"rtts"`
	Objects  Objects           `json:"objects"`
	QPs      qpList            `json:"qps"`
}

// qpList has the first queue pairs of a list in JSON, at most MaxQPs. The others are not decoded,
// because a short text can list very many.
type qpList []QP

// UnmarshalJSON implements json.Unmarshaler.
func (l *qpList) UnmarshalJSON(text []byte) error {
	*l = nil
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil { // the start of the list
		return err
	}
	for d.More() && len(*l) < MaxQPs {
		var q QP
		if err := d.Decode(&q); err != nil {
			return err
		}
		*l = append(*l, q)
	}
	return nil
}

var (
	errSilent = errors.New("the program did not answer")
	errBody   = errors.New("the program sent a report that cannot be read")
)

// counterNames has the names of the counters that a report may have.
var counterNames = func() map[string]bool {
	names := map[string]bool{}
	for n := range (roce.Counters{}).All() {
		names[n] = true
	}
	return names
}()

// program decodes a report. free is how many queue pairs it may have.
func (r *Report) program(free int) Program {
	p := Program{Slot: r.Slot, PID: r.PID, UID: r.UID, Name: printable(r.Name, maxName), Joined: r.Joined.UTC(),
		Counters: map[string]uint64{}, QPs: []QP{}}
	if len(r.Body) == 0 {
		p.Error = errSilent.Error()
		return p
	}
	var b body
	if json.Unmarshal(r.Body, &b) != nil {
		p.Error = errBody.Error()
		return p
	}
	for n, v := range b.Counters {
		if counterNames[n] {
			p.Counters[n] = v
		}
	}
	p.Objects, p.RTTs = b.Objects, b.RTTs
	p.RTTs.complete()
	p.QPs = checkedQPs(r.Slot, b.QPs)
	p.QPs = p.QPs[:min(len(p.QPs), MaxQPs, free)]
	p.Omitted = max(b.Objects.QPs-len(p.QPs), 0)
	return p
}

// slotShift moves the slot in a QPN to the lowest byte.
const slotShift = 16

// checkedQPs returns the queue pairs that a program in a slot can have: numbers of the slot, each
// once, in ascending order.
func checkedQPs(slot uint8, list []QP) []QP {
	good := []QP{}
	last := roce.QPN(0)
	for _, q := range list {
		foreign := slot != 0 && q.QPN>>slotShift != roce.QPN(slot)
		if foreign || q.QPN <= last || q.QPN >= 1<<24 || q.Rates != nil {
			continue
		}
		last = q.QPN
		q.Type, q.State = word(q.Type), word(q.State)
		if q.RTTs != nil {
			q.RTTs.complete()
		}
		good = append(good, q)
	}
	return good
}

// word returns s if it is a short word in upper case, such as the name of a state, and "" if not.
func word(s string) string {
	if len(s) > 8 || strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return ""
	}
	return s
}

// printable returns at most limit bytes of s, with "?" for each byte that is not printable ASCII,
// which could control a terminal.
func printable(s string, limit int) string {
	b := []byte(s[:min(len(s), limit)])
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}

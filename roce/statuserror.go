package roce

import "fmt"

// Error returns the text of String, so that a Status can be the target of errors.Is:
//
//	if errors.Is(wc.Err(), roce.RetryExcErr) {
//
// To turn a completion into an error use WC.Err, which returns nil for Success.
func (s Status) Error() string { return s.String() }

// StatusError is the status of a work request that failed, as an error. It wraps the Status:
// errors.Is(err, RemAccessErr) reports whether that is the status.
type StatusError struct {
	Status Status
	QPN    QPN    // the local QP; 0: not known
	ID     uint64 // WC.ID, if QPN is set
}

// Err returns nil if the Status is Success, otherwise a *StatusError whose text says what to do.
// errors.Is(err, w.Status) is then true.
func (w *WC) Err() error {
	if w.Status == Success {
		return nil
	}
	return &StatusError{Status: w.Status, QPN: w.QPN, ID: w.ID}
}

// Error returns the message.
func (e *StatusError) Error() string {
	text := e.Status.String()
	if hint := statusHints[e.Status]; hint != "" {
		text += ": " + hint
	}
	if e.QPN == 0 {
		return text
	}
	return fmt.Sprintf("roce: work request %d of QP %#x: %s", e.ID, uint32(e.QPN), text)
}

// Unwrap returns the Status.
func (e *StatusError) Unwrap() error { return e.Status }

// statusHints say what each status means for the program and what to do.
var statusHints = map[Status]string{
	LocLenErr: "the message was longer than the posted receive: post longer receives",
	LocQPOpErr: "the QP cannot execute the request: " +
		"connect it with MaxRdAtomic above 0, and keep to its limits",
	LocProtErr: "an SGE names memory that is no longer registered: " +
		"keep the memory region open until the completion",
	WRFlushErr: "not executed, because the QP went to the error state or was closed: " +
		"the first failed completion, or Conn.Err, says why",
	MWBindErr: "a memory window or key was not valid: " +
		"bind with a new key of MW.NextRKey, in a region with MWBind",
	BadRespErr:   "the peer's response breaks the protocol: check its version and the network",
	LocAccessErr: "local memory was not accessible",
	RemInvReqErr: "the peer refused the request: " +
		"check that it supports it and that its receives are long enough",
	RemAccessErr: "the peer refused access to its memory: " +
		"check address, length and R_Key, and that its region grants the right",
	RemOpErr: "the peer failed to execute the request: see its log",
	RetryExcErr: "the peer's RDMA side does not answer: " +
		"check that it still runs, that nothing drops UDP port 4791, " +
		"and that the network carries packets of the path MTU",
	RNRRetryExcErr: "the peer posted no receives: " +
		"let it post more, or raise ConnectOptions.RNRRetries",
}

// lostBy returns ErrConnLost with the status that caused it; Success means unknown.
func lostBy(st Status) error {
	if st == Success {
		return ErrConnLost
	}
	return fmt.Errorf("%w: %w", ErrConnLost, &StatusError{Status: st})
}

// lost returns why the QP, which is in StateErr, has lost its connection. Owner only.
func (q *QP) lost() error {
	err := lostBy(Status(q.qp.Cause()))
	if q.cmID != nil && q.cmID.conn != nil && q.cmID.conn.silent {
		err = fmt.Errorf("%w: %w", ErrKeepAlive, err)
	}
	return err
}

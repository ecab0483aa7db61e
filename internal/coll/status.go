package coll

import "fmt"

// Status is the outcome of a call, sagecomm_status in C. A status below zero is an error.
type Status int32

const (
	OK          Status = 0
	Pending     Status = 1  // the operation goes on
	Invalid     Status = -1 // the call is refused; nothing was sent
	PeerFailure Status = -2 // a rank died or left while it was needed
	Timeout     Status = -3 // the operation's time ran out
	Mismatch    Status = -4 // ranks called different operations
	Aborted     Status = -5 // the group was aborted or destroyed
	System      Status = -6 // the operating system refused
	Internal    Status = -7 // an error of this library
	Forked      Status = -8 // called in a forked child
)

var statusNames = map[Status]string{
	OK: "ok", Pending: "pending", Invalid: "invalid", PeerFailure: "peer failure", Timeout: "timeout",
	Mismatch: "mismatch", Aborted: "aborted", System: "system", Internal: "internal", Forked: "forked",
}

// String names the status in lower case.
func (s Status) String() string {
	if name, ok := statusNames[s]; ok {
		return name
	}
	return fmt.Sprintf("status %d", int32(s))
}

// Failed reports whether s is an error.
func (s Status) Failed() bool { return s < 0 }

// Known reports whether s is one of the errors above. A status from a peer's memory may be any number.
func (s Status) Known() bool { return s.Failed() && s >= Forked }

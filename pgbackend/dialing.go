package pgbackend

import (
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/handshake"
)

// This file reads why a process could not be dialed. It may have several addresses, and each has an error of its own: one may lose a packet while
// at another one, which means another machine on this network, somebody refuses.

// mayPass reports whether another attempt to dial may succeed, of which the first one began so long ago.
func mayPass(err error, tried time.Duration) bool {
	passes := func(err error) bool {
		var network net.Error
		switch {
		case !errors.As(err, &network), isAny(unix.ECONNREFUSED, handshake.ErrRefused)(err):
			return false
		case isAny(unix.ENETUNREACH, unix.EHOSTUNREACH)(err): // a wrong interface, or a host without power: as a rule for ever
			return tried < noWayLimit
		}
		return true
	}
	return !everywhere(err, func(err error) bool { return !passes(err) })
}

// everywhere reports whether the errors of all addresses are such. That the time is up is none of them.
func everywhere(err error, such func(error) bool) bool {
	all := atAddresses(err)
	for _, each := range all {
		if !such(each) {
			return false
		}
	}
	return len(all) > 0
}

// isAny returns a function that reports whether an error is one of some.
func isAny(some ...error) func(error) bool {
	return func(err error) bool {
		for _, each := range some {
			if errors.Is(err, each) {
				return true
			}
		}
		return false
	}
}

// atAddresses returns the errors that were joined.
func atAddresses(err error) (all []error) {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		if joined, ok := inner.(interface{ Unwrap() []error }); ok {
			for _, each := range joined.Unwrap() {
				all = append(all, atAddresses(each)...)
			}
			return all
		}
	}
	if err == nil || err == context.DeadlineExceeded || err == context.Canceled {
		return nil
	}
	return []error{err}
}

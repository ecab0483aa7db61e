package pgbackend

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
	"sagecomm/internal/handshake"
	"sagecomm/internal/transport/tcp"
)

// This file dials the processes of a group, and reads why one could not be dialed. A process may have several
// addresses, and each has an error of its own: one may lose a packet while at another one, which means another machine
// on this network, somebody refuses.

// noLink returns the failure of a link of the group that could not be made, or is lost before the group is made.
func (g *Group) noLink(to linkedProcess, why error) *coll.Failure {
	rank := to.ranks[0]
	var lost *tcp.LostError
	var certificate *tcp.CertificateError
	last := why
	if dialed := (*tcp.DialError)(nil); errors.As(why, &dialed) { // without that the time is up
		last = dialed
	}
	status, text := coll.System, strings.ReplaceAll(strings.TrimPrefix(last.Error(), "sagecomm: "), "\n", "; ")
	switch {
	case errors.As(why, &lost), everywhere(why, isAny(unix.ECONNREFUSED, unix.ECONNRESET, io.EOF)):
		status, text = coll.PeerFailure, closedByPeer+": "+text
	case errors.As(why, &certificate): // tells more than that the time is up, where another address does not answer
	case errors.Is(why, context.DeadlineExceeded):
		status, text = coll.Timeout, "it was not made in time: "+notInTime(to, atAddresses(why))
	case errors.Is(why, handshake.ErrRefused) && !g.members[0].HasSecret:
		text = "that process does not make the group any more: its log says why"
	}
	f := g.failedRank(status, rank)
	f.Message = fmt.Sprintf("sagecomm: group %q: no link to %s: %s", g.name, g.who(rank), text)
	return f
}

// notInTime returns why a link was not made in time. all are the reasons of the last attempt that had some.
func notInTime(to linkedProcess, all []error) string {
	var texts []string
	silent := true
	for _, each := range all {
		var network net.Error
		silent = silent && errors.As(each, &network) && network.Timeout()
		texts = append(texts, strings.ReplaceAll(each.Error(), "\n", "; "))
	}
	if len(all) == 0 {
		for _, at := range to.at.At {
			texts = append(texts, fmt.Sprintf("%v: no attempt has ended", at))
		}
	}
	text := strings.Join(texts, "; ")
	if silent {
		text = "the process there is stopped, or the network between drops packets: " + text
	}
	return text
}

// linkTo returns the link to a process. It dials until that succeeds, unless somebody refuses at all of its addresses,
// again and again, for a time at least: a link at first need is dialed for longer than one of the rendezvous. It is not
// where left reports that the rank has left, and nobody listens at the other end: a process that needs the link keeps
// its port open. The error has the reasons of the last attempt that ended by itself, if there is one. left may be nil.
func (l *groupLinks) linkTo(ctx context.Context, to linkedProcess, atLeast time.Duration, left func() bool) (link *tcp.Link, err error) {
	id, n := tcp.Identity(to.at.ID), l.network
	began := time.Now()
	if bytes.Compare(n.id[:], id[:]) > 0 {
		link = n.node.Await(ctx, id, firstDial)
	}
	dial := func() (*tcp.Link, error) { return n.node.Link(ctx, id, to.at.At, l.space) }
	if atLeast > 0 {
		dial = func() (*tcp.Link, error) { return l.dialNeeded(ctx, to) }
	}
	var why error
	for refusals := 0; link == nil; {
		if link, err = dial(); len(atAddresses(err)) > 0 && (why == nil || ctx.Err() == nil) {
			why = err
		}
		switch {
		case link != nil || ctx.Err() != nil:
		case everywhere(err, isAny(handshake.ErrRefused, io.EOF, io.ErrUnexpectedEOF)) && (refusals < mostRefusals || time.Since(began) < atLeast):
			refusals++
			if link = n.node.Await(ctx, id, refusalPause); link == nil && ctx.Err() == nil {
				continue
			}
		case !everywhere(err, refused):
			link = n.node.Await(ctx, id, otherWay)
		}
		shut := left != nil && everywhere(err, isAny(unix.ECONNREFUSED)) && left()
		final := !mayPass(err, time.Since(began)) && (shut || everywhere(err, refused) || time.Since(began) >= atLeast)
		if link == nil && (ctx.Err() != nil || final) {
			return nil, errors.Join(ctx.Err(), cmp.Or(why, err))
		}
	}
	return link, link.Err()
}

// mayPass reports whether another attempt to dial may succeed, of which the first one began so long ago.
func mayPass(err error, tried time.Duration) bool {
	passes := func(err error) bool {
		var network net.Error
		switch {
		case !errors.As(err, &network), isAny(unix.ECONNREFUSED)(err), refused(err):
			return false
		case isAny(unix.ENETUNREACH, unix.EHOSTUNREACH)(err): // a wrong interface, or a host without power: as a rule for ever
			return tried < noWayLimit
		}
		return true
	}
	return !everywhere(err, func(err error) bool { return !passes(err) })
}

// refused reports whether one of the two processes does not accept the other one.
func refused(err error) bool {
	var certificate *tcp.CertificateError
	return errors.Is(err, handshake.ErrRefused) || errors.As(err, &certificate)
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

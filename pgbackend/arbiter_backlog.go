package pgbackend

import (
	"fmt"
	"slices"

	"sagecomm/internal/verdict"
)

// This file has what an arbiter has to send, and links have not taken yet.

// mostWaiting bounds the frames that have come over one link, or are to be sent over it, at the same time. Of n members
// one that alone joins two halves tells each member of n^2/4 lost links, and passes on CAUSE of n/2 others to it; LOST
// is of n(n-1)/2 links at most. Where more than n^2 wait, and 64 for each member, something repeats itself.
func (a *arbiter) mostWaiting() int { return (64 + len(a.lowest)) * len(a.lowest) }

// keep has frames sent, each once as long as it waits.
func (a *arbiter) keep(list []verdict.Sent) {
	for _, s := range list {
		if !a.backlog[s.Over].add(s.Frame, a.mostWaiting()) {
			a.links[s.Over].Break(fmt.Errorf("internal error: more frames of the verdict on group %x are to be sent than %d members have", a.number, len(a.lowest)))
		}
	}
}

// send sends what links take. A link that cannot send is lost, which linkLost is about to say.
func (a *arbiter) send() {
	for to := range a.backlog {
		b := &a.backlog[to]
		for len(b.frames) > 0 {
			f := a.write(b.frames[0])
			taken, err := a.links[to].TrySend(0, &f.header, f.payload...)
			if err != nil {
				*b = backlog{}
			} else if taken {
				b.sent()
			} else {
				break
			}
		}
		if b.partly {
			sent, err := a.links[to].TryFlush(0)
			b.partly = !sent && err == nil
			if number := b.number; b.partly && b.asked < number {
				b.asked = number
				a.links[to].AfterSent(0, func() { a.push(func() { a.backlog[to].written(number) }) })
			}
		}
	}
}

// unsent reports whether a link has not taken everything.
func (a *arbiter) unsent() bool {
	return slices.ContainsFunc(a.backlog, func(b backlog) bool { return b.partly || len(b.frames) > 0 })
}

// backlog is what a link has not taken.
type backlog struct {
	frames []verdict.Frame // in order
	waits  map[verdict.Frame]bool
	partly bool // of the last frame that it has taken a part may have stayed behind
	number int  // of that frame
	asked  int  // the number of the frame behind which the link was asked to tell that it has sent all
}

// add appends a frame, unless an equal one waits: frames may come twice, and each has the same effect once. It reports
// false if there are too many, and drops all then.
func (b *backlog) add(f verdict.Frame, most int) bool {
	switch {
	case b.waits[f]:
		return true
	case len(b.frames) == most:
		*b = backlog{}
		return false
	case b.waits == nil:
		b.waits = map[verdict.Frame]bool{}
	}
	b.frames, b.waits[f] = append(b.frames, f), true
	return true
}

// sent takes the first frame out, which the link has taken.
func (b *backlog) sent() {
	delete(b.waits, b.frames[0])
	b.frames, b.partly, b.number = b.frames[1:], true, b.number+1
}

// written takes note that the link has sent the frame of a number, and all before it.
func (b *backlog) written(number int) { b.partly = b.partly && number != b.number }

package cuda

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"sagecomm/internal/device"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/shmem"
)

// This file shares the slots. All ranks share theirs in one way, which they try one after the other: by open files, and, if any rank cannot
// share or open one, by handles of legacy IPC. Handles mean nothing in another PID namespace, as in containers of their own. To give back
// or to close memory that has one waits for the device, and so for streams that wait for peers. So own memory of this kind is left to later
// groups, unless a peer has died without having said that it uses it no more, and that of peers stays open until the process ends, also if
// the peer has ended. Files are handed over by SCM_RIGHTS: it needs the same network namespace only, where pidfd_getfd would need the PID
// namespace as well, and the right to trace the other process.

var ways = []device.Sharing{device.ByFile, device.ByHandle}

// shared is memory that a rank shares.
type shared struct {
	memory   device.Memory   // nil: none
	file     int             // 0: none
	handover *shmem.Handover // of the file
	handle   device.Shared   // ByHandle
	on       string          // the device of handle
}

// handles has the memory that has a handle.
var handles struct {
	mu     sync.Mutex
	idle   map[string][]shared // that no group has, by device
	opened device.Once[openedHandle, device.Memory]
}

// openedHandle is memory of another process, for a device. A handle may come back in another process with the number of one that is gone.
type openedHandle struct {
	on     string
	of     shmem.Nonce
	handle string
	offset uint64
}

// shareByHandle makes slots that have a handle, or returns those that another group had.
func (m *member) shareByHandle() (s shared, err error) {
	on, err := m.d.Identity()
	if err != nil {
		return s, err
	}
	handles.mu.Lock()
	if idle := handles.idle[on]; len(idle) > 0 {
		s, handles.idle[on] = idle[len(idle)-1], idle[:len(idle)-1]
		handles.mu.Unlock()
		return s, nil
	}
	handles.mu.Unlock()
	s.on = on
	s.memory, s.handle, err = m.d.Share(allSlots+capturedSlots, device.ByHandle)
	return s, err
}

// openHandle opens slots of a peer that have a handle, once for all groups.
func (m *member) openHandle(p *peer, o device.Shared) (device.Memory, error) {
	on, err := m.d.Identity()
	if err != nil {
		return nil, err
	}
	of := openedHandle{on, p.process.Nonce, string(o.Handle), o.Offset}
	return handles.opened.Get(of, func() (device.Memory, error) { return m.d.OpenShared(o, device.ByHandle) })
}

// slotsOffer is what peers need to open a rank's slots.
type slotsOffer struct {
	Slots device.Shared `json:"slots"`
	File  shmem.Offer   `json:"file,omitzero"`
	Why   string        `json:"why,omitempty"` // the rank cannot share them in this way
}

// share makes slots that peers can open.
func (m *member) share(how device.Sharing) (s shared, o slotsOffer, err error) {
	if how == device.ByHandle {
		s, err = m.shareByHandle()
		return s, slotsOffer{Slots: s.handle}, err
	}
	if s.memory, o.Slots, err = m.d.Share(allSlots+capturedSlots, how); err != nil {
		return shared{}, o, err
	}
	s.file = o.Slots.File
	if s.handover, err = shmem.HandOver(s.file); err != nil {
		s.release()
		return shared{}, o, fmt.Errorf("cannot hand the file of slots over: %w", err)
	}
	o.File = s.handover.Offer()
	return s, o, nil
}

// handedOver ends the handover. The peers that have opened the memory keep it.
func (s *shared) handedOver() {
	if s.handover != nil {
		s.handover.Close()
		s.handover = nil
	}
	if s.file != 0 {
		_ = unix.Close(s.file)
		s.file = 0
	}
}

// release gives the memory back, to other groups if it has a handle. Requires: no peer uses it, and no command does.
func (s *shared) release() {
	s.handedOver()
	switch {
	case s.memory == nil:
		return
	case s.on == "":
		s.memory.Release()
	default:
		handles.mu.Lock()
		defer handles.mu.Unlock()
		if handles.idle == nil {
			handles.idle = map[string][]shared{}
		}
		handles.idle[s.on] = append(handles.idle[s.on], *s)
	}
	s.memory = nil
}

// openSlots opens the slots of all peers.
func (m *member) openSlots(offers []slotsOffer, how device.Sharing) error {
	ctx, cancel := context.WithTimeout(context.Background(), attachBound)
	defer cancel()
	for _, rank := range m.otherRanks() {
		p, o := &m.peers[rank], offers[rank]
		var err error
		if how == device.ByFile {
			if o.Slots.Bytes < allSlots+capturedSlots {
				err = fmt.Errorf("slots of %d bytes, expected %d", o.Slots.Bytes, allSlots+capturedSlots)
			} else {
				o.Slots.File, err = shmem.Take(ctx, o.File)
			}
		}
		if err == nil && how == device.ByFile {
			p.imported, err = m.d.OpenShared(o.Slots, how)
		} else if err == nil {
			p.handled, err = m.openHandle(p, o.Slots)
		}
		if how == device.ByFile && o.Slots.File > 0 {
			_ = unix.Close(o.Slots.File)
		}
		if err != nil {
			return fmt.Errorf("memory of rank %d (pid %d): %w", rank, p.process.PID, err)
		}
		if p.handled != nil {
			p.slots = p.handled.Address()
		} else {
			p.slots = p.imported.Address()
		}
	}
	return nil
}

// closeSlots closes what openSlots has opened.
func (m *member) closeSlots() {
	for rank := range m.peers {
		if p := &m.peers[rank]; p.imported != nil {
			p.imported.Release()
			p.imported = nil
		}
		m.peers[rank].handled = nil
	}
}

// joinSlots shares the slots of all ranks in the first way in which all of them can. own is why this rank cannot join, nil if it can. All
// ranks call it, and make the same exchanges. why tells why this rank cannot, or that a peer cannot.
func (m *member) joinSlots(j vendor.Joining, own error) (why, err error) {
	var reasons []error
	for _, how := range ways {
		before := m.slots
		var mine slotsOffer
		failed := own
		if failed == nil {
			m.slots, mine, failed = m.share(how)
		}
		if failed != nil {
			m.slots, mine = shared{}, slotsOffer{Why: failed.Error()}
		}
		offers, err := allOf(j, "slots of cuda", mine)
		before.release() // peers have closed what they had opened of it
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(offers, func(o slotsOffer) bool { return o.Why != "" }) {
			failed = m.openSlots(offers, how)
		}
		outcome := mine.Why
		if failed != nil {
			outcome = failed.Error()
			m.closeSlots()
		}
		outcomes, err := allOf(j, "opening of slots", outcome)
		if err != nil {
			return nil, err
		}
		m.slots.handedOver()
		if !slices.ContainsFunc(outcomes, func(why string) bool { return why != "" }) {
			m.peers[m.rank].slots = m.slots.memory.Address()
			return nil, nil
		}
		m.closeSlots()
		if failed != nil {
			reasons = append(reasons, failed)
		}
	}
	switch {
	case own != nil:
		return own, nil
	case reasons == nil:
		return errPeer, nil
	case len(reasons) == 1:
		return reasons[0], nil
	}
	return fmt.Errorf("%w; %w", reasons[0], reasons[1]), nil
}

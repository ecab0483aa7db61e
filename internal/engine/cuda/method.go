// Package cuda is the engine of the ranks of one host that share a GPU, or whose GPUs can use each other's memory. It needs no
// library of a vendor.
//
// Each rank has slots in the memory of its device, which its peers open by IPC, and an inbox of words in host memory.
// Package vendor numbers the operations and orders streams; a [Method] turns each operation into commands of one stream: copies by
// the copy engines, reductions by kernels that wait for nothing, writes of words in the inboxes of peers, and waits for words of the
// own inbox. All commands are queued at once. No kernel spins, and no thread of the host takes part.
//
// What is copied where, and who waits for whom, are the plans of algo/shmplan, which the CPU engine carries out in shared memory.
// Start reading at lower.go, then member.go.
package cuda

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/device/cuda"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/procwatch"
	"sagecomm/internal/shmem"
	"sagecomm/internal/topo"
)

// Links is what the group knows of the links between devices.
type Links struct {
	// Place returns where a device of this process is, nil if that is not known.
	Place func(index int) *topo.Place

	// Choose returns the choices of ranks with these seats, whose slots are slot bytes long. It returns the same on all ranks.
	Choose func(seats []vendor.Seat, slot int) *algo.DeviceChoices
}

// Method implements vendor.Method.
type Method struct {
	methods []shmem.Method
	links   Links
	open    func(index int) (driver, error)
}

var (
	_ vendor.Method = (*Method)(nil)
	_ vendor.Early  = (*Method)(nil)
)

// Present returns why this process cannot use the engine. It does not start the driver.
func Present() error { return cuda.Present() }

// New returns the method. Ranks map each other's inboxes by methods.
func New(methods []shmem.Method, links Links) *Method {
	return &Method{methods, links, func(index int) (driver, error) { return cuda.Open(index) }}
}

// Name implements vendor.Method.
func (m *Method) Name() string { return "cuda" }

// Vendor implements vendor.Method.
func (m *Method) Vendor() string { return "cuda" }

// Early implements vendor.Early. It loads the kernels.
func (m *Method) Early(on coll.Device) {
	if on.Type != coll.CUDA {
		return
	}
	if d, err := m.open(on.Index); err == nil {
		_ = d.LoadKernels()
	}
}

// Supports implements vendor.Method. Kernels reduce all types that the CPU reduces.
func (m *Method) Supports(coll.Op) bool { return true }

// Seat implements vendor.Method.
func (m *Method) Seat(s *vendor.Seat, on coll.Device) error {
	d, err := m.open(on.Index)
	if err != nil {
		return err
	}
	namespace, err := procwatch.PIDNamespace()
	if err != nil {
		return err
	}
	s.Process = fmt.Sprintf("%d of namespace %d", os.Getpid(), namespace)
	s.Where = m.links.Place(on.Index)
	s.Reaches, err = d.Reaches()
	return err
}

// Compare implements vendor.Method.
func (m *Method) Compare(seats []vendor.Seat) []string {
	reasons := make([]string, len(seats))
	for rank, s := range seats {
		if len(seats) > MostRanks {
			reasons[rank] = fmt.Sprintf("the group has %d ranks, the most are %d", len(seats), MostRanks)
			continue
		}
		for other, o := range seats {
			switch {
			case other < rank && o.Process == s.Process:
				reasons[rank] = fmt.Sprintf("rank %d is in the same process", other)
			case !slices.Contains(s.Reaches, o.Device):
				reasons[rank] = fmt.Sprintf("%s cannot use the memory of %s, the device of rank %d", s.Place, o.Place, other)
			}
		}
	}
	return reasons
}

// offer is what a rank gives its peers in a join.
type offer struct {
	Inbox  shmem.Descriptor `json:"inbox"`
	Place  shmem.Range      `json:"place"`
	Failed bool             `json:"failed,omitempty"`
}

// Join implements vendor.Method. Each rank makes its memory first, so that all of them can open it.
func (m *Method) Join(j vendor.Joining) (vendor.Member, error, error) {
	d, why := m.open(j.Device.Index)
	var member *member
	var mine offer
	if why == nil {
		member, mine, why = newMember(d, j.Group, m.methods, m.links.Choose(j.Seats, SlotBytes))
	}
	mine.Failed = why != nil
	offers, err := allOf(j, "memory of cuda", mine)
	for _, o := range offers {
		if o.Failed && why == nil {
			why = errPeer
		}
	}
	if why == nil && err == nil {
		why = member.connect(offers)
	}
	if err == nil && !slices.ContainsFunc(offers, func(o offer) bool { return o.Failed }) {
		why, err = member.joinSlots(j, why)
	}
	if member != nil && err == nil { // all ranks have mapped the inboxes, or none does
		member.lodging.home.joined()
	}
	if why == nil && err == nil {
		return member, nil, nil
	}
	here := func(f func()) { f() } // no stream has anything of it
	free := func() { member.Free(here) }
	if err != nil { // peers may have been mapping the inbox when the group failed
		free = func() { member.Free(here); member.lodging.home.joined() }
	} else if err = member.giveUp(j); err == nil {
		member = nil
	}
	if member != nil {
		j.Go(free)
	}
	if errors.Is(why, errPeer) { // its own reason is the one to tell
		why = nil
	}
	return nil, why, err
}

// giveUp ends a join that has failed, on all ranks alike, m being nil on those that have made no memory. Behind the exchange no rank has
// anything of another one open, so each has its own inbox and slots back: none waits for a word of a peer that could not map its inbox.
// After an error the caller calls Free.
func (m *member) giveUp(j vendor.Joining) error {
	if m != nil {
		m.closePeers()
	}
	if _, err := allOf(j, "end of a join of cuda", struct{}{}); err != nil {
		return err
	}
	if m != nil {
		m.slots.release()
		m.lodging.leave()
	}
	return nil
}

// allOf gives every rank the values of all ranks.
func allOf[T any](j vendor.Joining, purpose string, mine T) ([]T, error) {
	message, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	all, err := j.Exchange(purpose, message)
	if err != nil {
		return nil, err
	}
	list := make([]T, len(all))
	for rank := range all {
		if err := json.Unmarshal(all[rank], &list[rank]); err != nil {
			return nil, fmt.Errorf("rank %d has sent what no rank sends as its %s: %w", rank, purpose, err)
		}
	}
	return list, nil
}

var errPeer = errors.New("a peer cannot join")

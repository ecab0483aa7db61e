package pgbackend

import (
	"strconv"
	"strings"

	"sagecomm/algo"
	"sagecomm/internal/engine/cuda"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/lazylink"
	"sagecomm/internal/runner"
	"sagecomm/internal/topo"
)

// This file holds what the ranks of a group know of the links between their devices. Each rank tells the others in the
// rendezvous where its device is, so all ranks know the same.

const driverOfCUDA = "libcuda.so.1"

// placeOf returns where the device of this rank of a group is, nil if that is not known. Tests replace it.
//
// The rank is taken to use the GPU that launchers mean for it: LOCAL_RANK, modulo the GPUs that CUDA sees. Only the
// management library knows the GPUs, and starting it may take seconds where no process uses them. So placeOf asks it in
// processes that use CUDA already: a group that was made before knows of no links.
var placeOf = func(g *Group) *topo.Place {
	if !lazylink.Loaded(driverOfCUDA) {
		return nil
	}
	return placeIn(g.process.places(), localRank(runner.Environ()))
}

// localRank returns the number of this process among those of its host, as launchers give it, and -1 if there is none.
func localRank(environ []string) int {
	for _, entry := range environ {
		if text, ok := strings.CutPrefix(entry, "LOCAL_RANK="); ok {
			if number, err := strconv.Atoi(text); err == nil {
				return number
			}
		}
	}
	return -1
}

// placeIn returns the place of the GPU of a local rank.
func placeIn(places []topo.Place, local int) *topo.Place {
	if len(places) == 0 || local < 0 {
		return nil
	}
	return &places[local%len(places)]
}

// places returns the GPUs of this process. It reads them once.
func (p *Process) places() []topo.Place {
	p.placing.Do(func() { p.gpus = topo.ReadHost(runner.Environ()).Places() })
	return p.gpus
}

// placeOn returns the GPU that CUDA numbers so in this process, nil if it is not known. It may start the management
// library, which is quick in a process that uses the GPU.
func (p *Process) placeOn(index int) *topo.Place {
	if places := p.places(); index < len(places) {
		return &places[index]
	}
	return nil
}

// deviceLink returns the link between the devices of two ranks, which is the same on all ranks.
func (g *Group) deviceLink(a, b int) algo.DeviceLink {
	return linkOf(g.members[a].Place, g.members[b].Place, g.hostOf[a] == g.hostOf[b])
}

// linkOf returns the link between two devices.
func linkOf(a, b *topo.Place, oneHost bool) algo.DeviceLink {
	switch {
	case !oneHost:
		return algo.DeviceLink{Class: algo.Network}
	case a == nil || b == nil:
		return algo.DeviceLink{Class: algo.UnknownLink}
	}
	way := a.To(*b)
	class, _ := algo.ParseLinkClass(way.Class) // a class of another version of this library counts as not known
	return algo.DeviceLink{Class: class, NVLinks: way.NVLinks, Version: way.Version, PCI: way.PCI}
}

// chooseOnDevices returns the choices of the engine cuda for the devices that the ranks use, which all ranks have told
// each other. It keeps them for Explain.
func (g *Group) chooseOnDevices(seats []vendor.Seat, slot int) *algo.DeviceChoices {
	choices := g.selector.ChooseOnDevices(slot, func(a, b int) algo.DeviceLink {
		if seats[a].Device == seats[b].Device {
			return algo.DeviceLink{Class: algo.SameDevice}
		}
		return usable(linkOf(seats[a].Where, seats[b].Where, true))
	})
	g.deviceChoices.Store(choices)
	return choices
}

// usable returns what a link is taken for between devices that use each other's memory. If nothing else is known of it,
// it leads through a host bridge.
func usable(link algo.DeviceLink) algo.DeviceLink {
	if link.Class == algo.UnknownLink {
		link.Class = algo.HostBridge
	}
	return link
}

// expectedChoices returns the choices of the engine cuda before the ranks have told each other which devices they use,
// by what is known of the links before.
func expectedChoices(s *algo.Selector, link func(a, b int) algo.DeviceLink) *algo.DeviceChoices {
	return s.ChooseOnDevices(cuda.SlotBytes, func(a, b int) algo.DeviceLink { return usable(link(a, b)) })
}

// describedLink returns the link between the devices of two ranks of a described group, whose hosts are all like this
// one.
func (p *Process) describedLink(shape algo.Shape) func(a, b int) algo.DeviceLink {
	perHost := shape.Size / shape.HostCount()
	return func(a, b int) algo.DeviceLink {
		return linkOf(placeIn(p.places(), a%perHost), placeIn(p.places(), b%perHost), a/perHost == b/perHost)
	}
}

// deviceLinks is a row of an [Explanation]: links of one kind between the devices of a group.
type deviceLinks struct {
	Class   string  `json:"class"`
	NVLinks int     `json:"nvlinks,omitempty"` // parallel links of each pair
	Pairs   int     `json:"pairs"`
	Latency float64 `json:"latency"`  // seconds, as expected
	Rate    float64 `json:"gb_per_s"` // as expected
}

func describeLinks(links algo.DeviceLinks) (rows []deviceLinks) {
	for i, kind := range links.Kinds {
		c := links.Costs.Links[i]
		rows = append(rows, deviceLinks{kind.Class.String(), kind.NVLinks, links.Pairs[i], c.Latency, 1e-9 / c.Byte})
	}
	return rows
}

package pgbackend

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine/cuda"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/topo"
)

// testPlaces makes the ranks of groups tell the places that of returns, until the test ends.
func testPlaces(t *testing.T, of func(rank int) *topo.Place) {
	before := placeOf
	t.Cleanup(func() { placeOf = before })
	placeOf = func(g *Group) *topo.Place { return of(g.rank) }
}

// linksOfWorld returns what all ranks of a new group answer: the pairs of each class.
func linksOfWorld(t *testing.T, ranks int) (text string, w *world) {
	t.Helper()
	w = newWorld(t, ranks)
	for rank, g := range w.groups {
		answer, err := Get().Explain(Question{Op: "all_reduce", Bytes: 8, Group: g.Handle(), Device: true})
		require.NoError(t, err)
		mine := ""
		for _, row := range answer.Links {
			mine += fmt.Sprintf("%s: %d; ", row.Class, row.Pairs)
		}
		if rank == 0 {
			text = mine
		}
		require.Equal(t, text, mine, "rank %d", rank)
	}
	return text, w
}

// Only rank 0 knows how its GPU reaches the others: all ranks learn of it in the rendezvous, and answer alike.
func TestRanksKnowTheLinksBetweenTheirDevices(t *testing.T) {
	gpu := func(n int) string { return fmt.Sprintf("0000:%02x:00.0", n) }
	testPlaces(t, func(rank int) *topo.Place {
		switch rank {
		case 0:
			return &topo.Place{Address: gpu(0), Ways: map[string]topo.Way{gpu(1): {Class: topo.ClassNVLink, NVLinks: 18, Version: "4.0"}, gpu(2): {Class: topo.ClassSocket}}}
		case 3:
			return &topo.Place{Address: gpu(0)} // the GPU of rank 0
		}
		return &topo.Place{Address: gpu(rank)}
	})
	got, _ := linksOfWorld(t, 4)
	require.Equal(t, "same device: 1; NVLink: 1; socket: 1; not known: 3; ", got)
}

// Four ranks share the only GPU of a host.
func TestOneGPUForFourRanks(t *testing.T) {
	places := topo.Topology{GPUs: topo.GPUs{List: []topo.GPU{{Index: 0, Address: "0000:17:00.0"}}}}.Places()
	testPlaces(t, func(rank int) *topo.Place { return placeIn(places, rank) })
	got, _ := linksOfWorld(t, 4)
	require.Equal(t, "same device: 6; ", got)
}

// A rank of which nothing is known has no links that are known. Choices for tensors of the CPU do not depend on any of
// this.
func TestLinksAreNoPartOfChoicesForTheCPU(t *testing.T) {
	hashes := map[uint64]bool{}
	for _, class := range []string{topo.ClassNVLink, topo.ClassSocket, ""} {
		testPlaces(t, func(rank int) *topo.Place {
			if class == "" && rank == 1 {
				return nil
			}
			return &topo.Place{Address: fmt.Sprint(rank), Ways: map[string]topo.Way{fmt.Sprint(1 - rank): {Class: class, NVLinks: 1}}}
		})
		got, w := linksOfWorld(t, 2)
		want := map[string]string{topo.ClassNVLink: "NVLink: 1; ", topo.ClassSocket: "socket: 1; ", "": "not known: 1; "}[class]
		require.Equal(t, want, got)
		hashes[w.groups[0].choicesHash()] = true
	}
	require.Len(t, hashes, 1)
}

func TestLinksOfHosts(t *testing.T) {
	here := &topo.Place{Address: "a", Ways: map[string]topo.Way{"b": {Class: topo.ClassHostBridge, PCI: 256}}}
	there := &topo.Place{Address: "b"}
	require.Equal(t, algo.DeviceLink{Class: algo.HostBridge, PCI: 256}, linkOf(here, there, true))
	require.Equal(t, algo.DeviceLink{Class: algo.Network}, linkOf(here, there, false))
	require.Equal(t, algo.DeviceLink{Class: algo.Network}, linkOf(here, here, false)) // the same address on another host
	require.Equal(t, algo.DeviceLink{Class: algo.UnknownLink}, linkOf(nil, there, true))
}

// Package topo names the classes that package algo has costs for.
func TestClassesOfLinksHaveOneName(t *testing.T) {
	for want, name := range []string{topo.ClassSameDevice, topo.ClassNVLink, topo.ClassPCISwitch, topo.ClassHostBridge, topo.ClassSocket, "network", topo.ClassUnknown} {
		got, err := algo.ParseLinkClass(name) // package topo knows of one host only, and so of no network
		require.NoError(t, err)
		require.Equal(t, algo.LinkClass(want), got)
	}
}

func TestLocalRank(t *testing.T) {
	require.Equal(t, 3, localRank([]string{"RANK=11", "LOCAL_RANK=3"}))
	require.Equal(t, -1, localRank([]string{"RANK=11", "LOCAL_RANK=x"}))
	places := []topo.Place{{Address: "a"}, {Address: "b"}}
	require.Equal(t, "b", placeIn(places, 3).Address)
	require.Nil(t, placeIn(places, -1))
	require.Nil(t, placeIn(nil, 0))
}

// The engine cuda chooses by the devices that the ranks use, which need not be those of the rendezvous. All ranks
// choose alike, and explain what they have chosen.
func TestChoicesOfTheEngineOfSharedDevices(t *testing.T) {
	address := func(n int) string { return fmt.Sprintf("0000:%02x:00.0", n) }
	gpu := func(n int) *topo.Place {
		place := &topo.Place{Address: address(n), Ways: map[string]topo.Way{}}
		for other := range 4 {
			place.Ways[address(other)] = topo.Way{Class: topo.ClassNVLink, NVLinks: 18, Version: "4.0"}
		}
		return place
	}
	seats := func(device func(rank int) int, where func(n int) *topo.Place) (list []vendor.Seat) {
		for rank := range 4 {
			list = append(list, vendor.Seat{Device: fmt.Sprint(device(rank)), Where: where(device(rank))})
		}
		return list
	}
	nowhere := func(int) *topo.Place { return nil }
	testPlaces(t, func(int) *topo.Place { return nil })
	_, w := linksOfWorld(t, 4)
	tables := map[string]string{}
	for name, of := range map[string][]vendor.Seat{
		"shared":  seats(func(int) int { return 0 }, nowhere),
		"nvlink":  seats(func(rank int) int { return rank }, gpu),
		"unknown": seats(func(rank int) int { return rank }, nowhere),
	} {
		for rank, g := range w.groups {
			got := g.chooseOnDevices(of, cuda.SlotBytes).Describe(coll.AllReduce)
			if rank == 0 {
				tables[name] = got
			}
			require.Equal(t, tables[name], got, "rank %d", rank)
		}
	}
	require.NotEqual(t, tables["shared"], tables["nvlink"])
	require.NotEqual(t, tables["nvlink"], tables["unknown"])
	require.Equal(t, tables["unknown"], expectedChoices(w.groups[0].selector, w.groups[0].deviceLink).Describe(coll.AllReduce), "nothing was told in the rendezvous")
}

// A described group may have more ranks than the engine serves, and pricing all of their plans would take minutes.
func TestChoicesOfGroupsThatTheEngineDoesNotServe(t *testing.T) {
	unknown := func(int, int) algo.DeviceLink { return algo.DeviceLink{Class: algo.UnknownLink} }
	of := func(engine string, shape algo.Shape) *algo.DeviceChoices {
		s, err := algo.NewSelector(shape, algo.DefaultParams(), algo.Tune{})
		require.NoError(t, err)
		return choices{selector: s, shape: shape, engines: algo.EngineChoice{Engine: engine}, link: unknown}.forDevices()
	}
	require.NotNil(t, of(cudaEngine, algo.Shape{Size: cuda.MostRanks}))
	require.Nil(t, of(cudaEngine, algo.Shape{Size: cuda.MostRanks + 1}))
	require.Nil(t, of(stagedEngine, algo.Shape{Size: 2}))
	require.Nil(t, of(cudaEngine, algo.Shape{Size: 2, Hosts: [][]int{{0}, {1}}, Apart: true}))
}

package observe

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// Dumps are files that torch's analyser reads, one per rank of the job, named by a prefix and the rank's number. Every rank
// writes its own file when one of its groups fails. A rank that has died or was stopped cannot write its file, but its records
// and the list of them lie in memory that the other ranks have mapped (list.go). The lowest rank of the group that has neither
// died nor failed to begin the operation writes that file, unless another process has written it since the failure.

// dumpTimeout bounds how long a failure is held back for its dump. The failure must wait, because the launcher may kill all
// ranks as soon as one exits. The bound is far less than the time within which failures must be raised.
const dumpTimeout = 500 * time.Millisecond

// torch's variables for the same settings: the prefix of dumps, and whether failures are dumped.
var (
	dumpPlaces   = []string{"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
	dumpSwitches = []string{"TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"}
)

// firstOf returns the value of the first of some variables that is set and not empty.
func firstOf(environ []string, names []string) string {
	for _, name := range names {
		for _, entry := range environ {
			if value, ok := strings.CutPrefix(entry, name+"="); ok && value != "" {
				return value
			}
		}
	}
	return ""
}

// dumpPrefix returns the prefix of the files of failure dumps, or "" if failures are not dumped.
func dumpPrefix(s *env.Settings, environ []string) string {
	switch chosen := env.FlightDump.Get(s); {
	case !chosen.Given:
		if off, err := strconv.ParseBool(firstOf(environ, dumpSwitches)); err == nil && !off {
			return ""
		}
		return firstOf(environ, dumpPlaces)
	case chosen.Value == env.NoDump:
		return ""
	default:
		return chosen.Value
	}
}

// DumpFailure dumps the flight recorder because a group has failed. pgbackend calls it before the group's operations raise
// the failure. It returns when the files are written or after dumpTimeout.
func (o *Observers) DumpFailure(g Group) {
	f := g.Cause()
	prefix := dumpPrefix(g.Settings(), runner.Environ())
	if prefix == "" || f.Status == coll.Aborted || !g.Acquire() {
		return
	}
	within(dumpTimeout, o.dumps.add(o.groups, failedGroup{g, prefix, silent(g, f), time.Now(), true}))
}

// DumpLate starts writing the file of a rank that died after the group had failed. It does not wait for the file.
func (o *Observers) DumpLate(g Group, rank int) {
	prefix := dumpPrefix(g.Settings(), runner.Environ())
	if f := g.Cause(); prefix == "" || f == nil || f.Status == coll.Aborted || !g.Acquire() {
		return
	}
	o.dumps.add(o.groups, failedGroup{g, prefix, append(g.Dead(), rank), time.Now(), false})
}

// Dump writes the file of this process's rank and returns when it is written. An empty prefix stands for the prefix of
// failure dumps.
func (o *Observers) Dump(prefix string) error {
	groups := o.groups()
	list := ownFlights(groups)
	rank := 0
	if len(groups) > 0 {
		h := groups[0].Header()
		rank = h.GlobalRank(h.Rank)
		if prefix == "" {
			prefix = dumpPrefix(groups[0].Settings(), runner.Environ())
		}
	}
	releaseAll(groups)
	if prefix == "" {
		return fmt.Errorf("sagecomm: the flight recorder's dump has no file name: give a prefix, or set %s or %s", env.FlightDump.Name(), dumpPlaces[0])
	}
	if len(list) == 0 {
		return errors.New("sagecomm: nothing to dump: there is no group whose flight recorder is on")
	}
	return o.dumps.files.write(dumpFile{prefix: prefix, rank: rank, groups: list})
}

// silent returns the ranks that cannot write a dump themselves, because they have died or have not begun the operation that
// failed. Requires: the group is acquired.
func silent(g Group, f *coll.Failure) []int {
	h, silent := g.Header(), g.Dead()
	if f.Status == coll.PeerFailure || f.Status == coll.Timeout {
		silent = append(silent, f.Rank)
	}
	if f.Status == coll.Timeout && f.Sequence > 0 {
		lane := runner.HostLane
		if f.OnDevice {
			lane = runner.DeviceLane
		}
		for rank := range h.Size {
			if last, _ := hostRun(g).LastIn(lane, rank); last.Sequence < f.Sequence {
				silent = append(silent, rank)
			}
		}
	}
	silent = slices.DeleteFunc(silent, func(rank int) bool { return rank < 0 || rank >= h.Size || rank == h.Rank })
	slices.Sort(silent)
	return slices.Compact(silent)
}

// writtenBy returns the absent ranks whose files this rank writes: all of them on its host, or none if a lower rank of the host writes them.
func writtenBy(writer int, absent []int, members []Member) []int {
	onOtherHosts := func(rank int) bool { return len(members[rank].Arena) == 0 }
	for rank := range writer {
		if !onOtherHosts(rank) && !slices.Contains(absent, rank) {
			return nil
		}
	}
	return slices.DeleteFunc(slices.Clone(absent), onOtherHosts)
}

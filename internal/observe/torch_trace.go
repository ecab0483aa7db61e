package observe

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/pickle"
	"sagecomm/internal/runner"
)

// This file converts flight records to the format of torch's flight recorder. The keys are defined in
// torch/csrc/distributed/c10d/FlightRecorder.hpp and read by torch/distributed/flight_recorder/components. Two things differ
// from torch's own entries: a tensor of n elements has the size [n], and p2p operations are numbered from p2pNumbers on.

// traceVersion is the version of torch's format, version_val in FlightRecorder.hpp.
const traceVersion = "2.10"

// p2pNumbers is the first number of p2p operations, far above the numbers of collectives. If the number of a p2p operation
// equals that of a collective next to it, the analyser takes the two for one coalesced operation.
const p2pNumbers = 1_000_000_000_000

// torchTypes maps types to torch's names. A type that is missing keeps the name that coll gives it.
var torchTypes = map[coll.DataType]string{
	coll.Int8: "Char", coll.Int16: "Short", coll.Int32: "Int", coll.Int64: "Long",
	coll.Uint8: "Byte", coll.Uint16: "UInt16", coll.Uint32: "UInt32", coll.Uint64: "UInt64", coll.Bool: "Bool",
	coll.Float16: "Half", coll.BFloat16: "BFloat16", coll.Float32: "Float", coll.Float64: "Double",
	coll.Complex64: "ComplexFloat", coll.Complex128: "ComplexDouble",
	coll.Float8E4M3FN: "Float8_e4m3fn", coll.Float8E5M2: "Float8_e5m2", coll.Float8E4M3FNUZ: "Float8_e4m3fnuz",
	coll.Float8E5M2FNUZ: "Float8_e5m2fnuz", coll.Float8E8M0FNU: "Float8_e8m0fnu", coll.Sparse: "Sparse",
}

// Both lanes of a group number their collectives from 1, and no order is fixed between them. The analyser matches operations of
// different ranks by the name of their group and their number. So the device lane is a group of its own in the files: with the
// ranks and the description of its group, a name that ends with deviceSuffix, and numbers of its own.

// deviceSuffix is added to the name of a group for its device lane.
const deviceSuffix = "/device"

// traceGroup returns the name of a group's lane.
func (s snapshot) traceGroup() string {
	if s.lane == runner.DeviceLane {
		return s.Group + deviceSuffix
	}
	return s.Group
}

// pgID returns the number of a group's lane in the files. It is unique in the rank's process, which numbers groups from 1.
func (s snapshot) pgID() int64 { return int64(s.ID-1)*runner.Lanes + int64(s.lane) }

// config returns the entry of "pg_config".
func (s snapshot) config() pickle.Dict {
	ranks := make([]string, s.Size)
	for i := range ranks {
		ranks[i] = strconv.Itoa(s.GlobalRank(i))
	}
	return pickle.Dict{{Key: "name", Value: s.traceGroup()}, {Key: "desc", Value: s.Description},
		{Key: "ranks", Value: "[" + strings.Join(ranks, ", ") + "]"}}
}

// traceStatus returns a group's entry of "pg_status", where -1 stands for no collective yet.
func traceStatus(last uint64, log runner.FlightLog) pickle.Dict {
	some := func(n uint64) int64 {
		if n == 0 {
			return -1
		}
		return int64(n)
	}
	return pickle.Dict{{Key: "last_enqueued_collective", Value: some(last)},
		{Key: "last_started_collective", Value: some(log.Started)},
		{Key: "last_completed_collective", Value: some(log.Completed)}}
}

// entries returns the recorded operations. The code that combines the entries of all groups sets "record_id" and "thread_name".
func (s snapshot) entries() []pickle.Dict {
	log := s.log
	entries := make([]pickle.Dict, len(log.Flights))
	// The loops go backwards: a p2p operation gets the number of the last collective before it, whose record may already be
	// overwritten.
	collective, p2p := s.issued, uint64(0)
	for i := len(log.Flights) - 1; i >= 0; i-- {
		if f := &log.Flights[i]; f.Op.Kind.Collective() {
			collective = max(collective, f.Number)
		} else {
			p2p = max(p2p, f.Number)
		}
	}
	for i := len(log.Flights) - 1; i >= 0; i-- {
		f := &log.Flights[i]
		if f.Op.Kind.Collective() {
			collective = f.Number
		} else {
			p2p = f.Number
		}
		entries[i] = s.entry(f, collective, p2p)
		entries[i] = append(entries[i], pickle.Item{Key: "op_id", Value: int64(log.Total) - int64(len(entries)) + int64(i) + 1})
		if f.Op.Kind.Collective() {
			collective--
		} else {
			p2p--
		}
	}
	return entries
}

func (s snapshot) entry(f *runner.Flight, collective, p2p uint64) pickle.Dict {
	dtype := f.Op.Type.String()
	if known, ok := torchTypes[f.Op.Type]; ok {
		dtype = known
	}
	inputs, outputs := traceSizes(f.Op, s.Size)
	done := f.Progress == runner.Completed
	// torch has no state for a failed operation. Such an operation is retired, but not completed.
	state := "scheduled"
	switch {
	case done:
		state = "completed"
	case !f.Started.IsZero():
		state = "started"
	}
	entry := pickle.Dict{
		{Key: "record_id", Value: int64(0)},
		{Key: "pg_id", Value: s.pgID()},
		{Key: "process_group", Value: pickle.Tuple{s.traceGroup(), s.Description}},
		{Key: "thread_name", Value: ""},
		{Key: "thread_id", Value: fmt.Sprint(f.Thread)},
		{Key: "collective_seq_id", Value: int64(collective)},
		{Key: "p2p_seq_id", Value: int64(p2pNumbers + p2p)},
		{Key: "profiling_name", Value: s.Prefix + ":" + traceName(f.Op, s.Rank)},
		{Key: "time_created_ns", Value: unixNS(f.Created)},
		{Key: "input_sizes", Value: inputs},
		{Key: "input_dtypes", Value: repeated(dtype, len(inputs))},
		{Key: "output_sizes", Value: outputs},
		{Key: "output_dtypes", Value: repeated(dtype, len(outputs))},
		{Key: "state", Value: state},
		{Key: "time_discovered_started_ns", Value: orNone(f.Started)},
		{Key: "time_discovered_completed_ns", Value: any(nil)},
		{Key: "retired", Value: done || f.Progress == runner.Failed},
		{Key: "timeout_ms", Value: f.Op.Timeout.Milliseconds()},
		{Key: "is_p2p", Value: !f.Op.Kind.Collective()},
		{Key: "frames", Value: traceFrames(f)},
	}
	if done {
		entry.Set("time_discovered_completed_ns", orNone(f.Completed))
		if !f.Started.IsZero() {
			entry = append(entry, pickle.Item{Key: "duration_ms", Value: float64(f.Completed.Sub(f.Started)) / 1e6})
		}
	}
	return entry
}

func orNone(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixNano()
}

func repeated(s string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = s
	}
	return list
}

// traceName returns an operation's name: "all_reduce", "send 0->1", "recv 1<-0" or "recv 1<-?".
func traceName(op coll.Op, rank int) string {
	switch {
	case op.Kind == coll.Send:
		return fmt.Sprintf("send %d->%d", rank, op.Root)
	case op.Kind == coll.Recv && op.Root == coll.AnySource:
		return fmt.Sprintf("recv %d<-?", rank)
	case op.Kind == coll.Recv:
		return fmt.Sprintf("recv %d<-%d", rank, op.Root)
	}
	return op.Name()
}

// traceSizes returns the sizes of an operation's inputs and outputs.
func traceSizes(op coll.Op, ranks int) (inputs, outputs [][]int64) {
	inputs, outputs = [][]int64{}, [][]int64{}
	n := int64(op.Bytes()) / int64(max(op.Type.Size(), 1))
	switch {
	case op.Kind == coll.Barrier:
		return inputs, outputs
	case op.OfSparse(): // the user called all_reduce, whose input and output are equally long
		return [][]int64{{n}}, [][]int64{{n}}
	}
	in, out := n, n
	switch op.Kind {
	case coll.ReduceScatter, coll.Scatter:
		in *= int64(ranks)
	case coll.AllGather, coll.Gather:
		out *= int64(ranks)
	}
	if op.Kind != coll.Recv {
		inputs = append(inputs, []int64{in})
	}
	if op.Kind != coll.Send {
		outputs = append(outputs, []int64{out})
	}
	return inputs, outputs
}

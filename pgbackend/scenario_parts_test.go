package pgbackend

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// parseCall reads a call of a scenario, and gives it buffers of the right lengths.
func parseCall(words []string, rank, size int) (c runner.Coalesced, err error) {
	kind, ok := coll.ParseKind(words[0])
	if !ok {
		return c, fmt.Errorf("%q is no operation", words[0])
	}
	c.Op = coll.Op{Kind: kind, Type: coll.Uint8, Async: true}
	var n uint64
	for i := 1; i < len(words) && err == nil; i++ {
		argument := ""
		if i+1 < len(words) {
			argument = words[i+1]
		}
		switch word := words[i]; word {
		case "root", "to", "from":
			if c.Op.Root, err = strconv.Atoi(argument); argument == "any" {
				c.Op.Root, err = coll.AnySource, nil
			}
			i++
		case "tag":
			c.Op.Tag, err = strconv.Atoi(argument)
			i++
		case "timeout":
			c.Op.Timeout, err = time.ParseDuration(argument)
			i++
		case "device":
			c.Op.Device = aDevice
		case "in":
			c.Op.InBlocks, err = blocksOf(argument, c.Op.Type)
			i++
		case "out":
			c.Op.OutBlocks, err = blocksOf(argument, c.Op.Type)
			i++
		default:
			if t, ok := named[coll.DataType](word); ok {
				c.Op.Type = t
			} else if r, ok := named[coll.ReduceOp](word); ok {
				c.Op.Reduce = r
			} else {
				n, err = strconv.ParseUint(word, 10, 32)
			}
		}
	}
	for _, blocks := range [][]uint64{c.Op.InBlocks, c.Op.OutBlocks} {
		if blocks != nil && len(blocks) != size {
			return c, fmt.Errorf("%d blocks for %d ranks", len(blocks), size)
		}
	}
	in, out := callBytes(c.Op, n*uint64(c.Op.Type.Size()), rank, size)
	if in > 0 {
		c.In = one(make([]byte, in))
	}
	if out > 0 {
		c.Out = one(make([]byte, out))
	}
	return c, err
}

// named finds a data type or a reduction by its name.
func named[T interface {
	~uint8
	fmt.Stringer
}](word string) (T, bool) {
	for v := range T(255) {
		if v.String() == word {
			return v, true
		}
	}
	return 0, false
}

func blocksOf(list string, t coll.DataType) (blocks []uint64, err error) {
	for _, number := range strings.Split(list, ",") {
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, n*uint64(t.Size()))
	}
	return blocks, nil
}

// callBytes returns the lengths of the buffers of a rank that sends or receives n bytes for each rank.
func callBytes(op coll.Op, n uint64, rank, size int) (in, out uint64) {
	all := n * uint64(size)
	switch op.Kind {
	case coll.AllReduce, coll.Broadcast, coll.Reduce:
		in, out = n, n
	case coll.AllGather, coll.Gather:
		in, out = n, all
	case coll.ReduceScatter, coll.Scatter:
		in, out = all, n
	case coll.AllToAll:
		in, out = all, all
	case coll.Send:
		in = n
	case coll.Recv:
		out = n
	}
	isRoot := rank == op.Root
	if !isRoot && (op.Kind == coll.Broadcast || op.Kind == coll.Scatter) {
		in = 0
	}
	if !isRoot && (op.Kind == coll.Reduce || op.Kind == coll.Gather) {
		out = 0
	}
	sum := func(blocks []uint64, whole uint64) uint64 {
		if blocks == nil {
			return whole
		}
		total := uint64(0)
		for n := range slices.Values(blocks) {
			total += n
		}
		return total
	}
	return sum(op.InBlocks, in), sum(op.OutBlocks, out)
}

// digest matches the fingerprint of a table of algorithms, which changes with every table.
var digest = regexp.MustCompile(`\b[0-9a-f]{16}\b`)

// waited matches the time for which a rank has waited for the others, in a group with a timeout of 300 ms.
var waited = regexp.MustCompile(`(rendezvous \S+ timed out after )\d+ms`)

// lostAt is where and how a connection was lost.
var lostAt = regexp.MustCompile(`(the connection to the process at )\S+ is lost: .*(; the process has ended)`)

// describeFailure writes a failure as scenarios have it.
func describeFailure(t *testing.T, f *coll.Failure) string {
	t.Helper()
	text := exceptionOf(f.Status)
	if f.Rank >= 0 && f.Status != coll.Mismatch && f.Status != coll.Invalid {
		text += fmt.Sprintf(", rank %d", f.Rank)
	}
	host, err := os.Hostname()
	require.NoError(t, err)
	message := strings.ReplaceAll(f.Message, fmt.Sprintf("host %s, pid %d", host, os.Getpid()), "host h, pid 12")
	message = strings.ReplaceAll(message, fmt.Sprintf("group %q", t.Name()), `group "0"`)
	message = digest.ReplaceAllString(message, "0123456789abcdef")
	message = lostAt.ReplaceAllString(message, "${1}10.0.0.2:40112 is lost: connection reset by peer${2}")
	return text + "\n" + waited.ReplaceAllString(message, "${1}300ms")
}

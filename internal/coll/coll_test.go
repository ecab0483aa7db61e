package coll

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// enum reads the constants of one enum of the C header.
func enum(t *testing.T, name string) map[string]int {
	t.Helper()
	text, err := os.ReadFile("../../export/sagecomm.h")
	require.NoError(t, err)
	block := regexp.MustCompile(`typedef enum ` + name + ` \{([^}]*)\}`).FindStringSubmatch(string(text))
	if block == nil {
		t.Fatalf("no enum %s in the header", name)
	}
	body := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(block[1], "")
	values, next := map[string]int{}, 0
	for _, item := range strings.Split(body, ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		left, right, given := strings.Cut(item, "=")
		if given {
			if next, err = strconv.Atoi(strings.TrimSpace(right)); err != nil {
				t.Fatalf("%s: %v", item, err)
			}
		}
		values[strings.TrimPrefix(strings.TrimSpace(left), "SAGECOMM_")] = next
		next++
	}
	return values
}

func compare(t *testing.T, header map[string]int, ours map[string]int) {
	t.Helper()
	for name, value := range header {
		if got, ok := ours[name]; !ok || got != value {
			t.Errorf("%s is %d in the header, %d (known: %v) here", name, value, got, ok)
		}
	}
	for name := range ours {
		if _, ok := header[name]; !ok {
			t.Errorf("%s is not in the header", name)
		}
	}
}

func TestValuesEqualTheHeader(t *testing.T) {
	kinds := map[string]int{"KIND_COUNT": int(KindCount)}
	for k := range KindCount {
		kinds[strings.ToUpper(k.String())] = int(k)
	}
	compare(t, enum(t, "sagecomm_kind"), kinds)

	types := map[string]int{"DTYPE_COUNT": int(DataTypeCount)}
	for d := range DataTypeCount {
		types[strings.ToUpper(d.String())] = int(d)
	}
	compare(t, enum(t, "sagecomm_dtype"), types)

	ops := map[string]int{"REDUCE_OP_COUNT": int(ReduceOpCount)}
	for r := range ReduceOpCount {
		ops[r.String()] = int(r)
	}
	compare(t, enum(t, "sagecomm_reduce_op"), ops)

	status := map[string]int{}
	for s, name := range statusNames {
		status[strings.ReplaceAll(strings.ToUpper(name), " ", "_")] = int(s)
	}
	compare(t, enum(t, "sagecomm_status"), status)
}

func TestAnySourceEqualsTheHeader(t *testing.T) {
	text, err := os.ReadFile("../../export/sagecomm.h")
	require.NoError(t, err)
	if !strings.Contains(string(text), "#define SAGECOMM_ANY_SOURCE ("+strconv.Itoa(AnySource)+")") {
		t.Error("AnySource differs from SAGECOMM_ANY_SOURCE")
	}
}

func TestSizes(t *testing.T) {
	want := map[int][]DataType{
		1:  {Int8, Uint8, Bool, Float8E4M3FN, Float8E5M2, Float8E4M3FNUZ, Float8E5M2FNUZ, Float8E8M0FNU},
		2:  {Int16, Uint16, Float16, BFloat16},
		4:  {Int32, Uint32, Float32},
		8:  {Int64, Uint64, Float64, Complex64, Sparse},
		16: {Complex128},
	}
	seen := 0
	for size, types := range want {
		for _, d := range types {
			seen++
			if d.Size() != size {
				t.Errorf("%v has %d bytes, want %d", d, d.Size(), size)
			}
		}
	}
	if seen != int(DataTypeCount) {
		t.Errorf("%d types listed, there are %d", seen, DataTypeCount)
	}
	if DataTypeCount.Size() != 0 {
		t.Error("an unknown type has a size")
	}
}

func TestDefined(t *testing.T) {
	ints := []DataType{Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64}
	floats := []DataType{Float16, BFloat16, Float32, Float64}
	complexes := []DataType{Complex64, Complex128}
	want := map[DataType]map[ReduceOp]bool{}
	allow := func(types []DataType, ops ...ReduceOp) {
		for _, d := range types {
			want[d] = map[ReduceOp]bool{}
			for _, op := range ops {
				want[d][op] = true
			}
		}
	}
	allow(ints, Sum, Product, Min, Max, Avg, BAnd, BOr, BXor)
	allow(floats, Sum, Product, Min, Max, Avg, PremulSum)
	allow(complexes, Sum, Product, Avg, PremulSum)
	allow([]DataType{Bool}, Sum, Product, Min, Max, BAnd, BOr, BXor)
	for d := range DataTypeCount {
		for op := range ReduceOpCount {
			if got := Defined(op, d) == nil; got != want[d][op] {
				t.Errorf("Defined(%v, %v) = %v, want %v", op, d, got, want[d][op])
			}
		}
	}
	for _, err := range []error{Defined(ReduceOpCount, Int8), Defined(Sum, DataTypeCount)} {
		if err == nil || !strings.Contains(err.Error(), "not known") {
			t.Errorf("an unknown value gives %v", err)
		}
	}
}

// The table in docs/torch-surface.md names each type that users have, with exactly the reductions that are defined for it.
func TestDocumentedReductions(t *testing.T) {
	text, err := os.ReadFile("../../docs/torch-surface.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| types | reductions |\n|---|---|\n")
	if !found {
		t.Fatal("docs/torch-surface.md has no table of types and reductions")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	word := regexp.MustCompile("`([^`]+)`")
	documented := map[string]map[string]bool{}
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Split(line, "|")
		for _, d := range word.FindAllStringSubmatch(cells[1], -1) {
			documented[d[1]] = map[string]bool{}
			for _, op := range word.FindAllStringSubmatch(cells[2], -1) {
				documented[d[1]][op[1]] = true
			}
		}
	}
	for d := range DataTypeCount {
		row, known := documented[d.String()]
		if known == (d == Sparse) {
			t.Errorf("%v: in the table %v", d, known)
		}
		for op := range ReduceOpCount {
			if want := Defined(op, d) == nil; row[op.String()] != want {
				t.Errorf("%v of %v: in the table %v, defined %v", op, d, row[op.String()], want)
			}
		}
	}
	if len(documented) != int(DataTypeCount)-1 {
		t.Errorf("%d types in the table, there are %d", len(documented), DataTypeCount-1)
	}
}

func TestNamesOfUnknownValues(t *testing.T) {
	for got, want := range map[string]string{
		KindCount.String():     "kind 11",
		DataTypeCount.String(): "dtype 21",
		ReduceOpCount.String(): "reduction 9",
		Status(-99).String():   "status -99",
		PeerFailure.String():   "peer failure",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestParseKind(t *testing.T) {
	for k := range KindCount {
		if got, ok := ParseKind(k.String()); !ok || got != k {
			t.Errorf("ParseKind(%q) = %v, %v", k, got, ok)
		}
	}
	if _, ok := ParseKind("allreduce"); ok {
		t.Error("an unknown name is accepted")
	}
}

func TestKindProperties(t *testing.T) {
	for k := range KindCount {
		if k.Collective() != (k != Send && k != Recv) ||
			k.Rooted() != (k == Broadcast || k == Reduce || k == Gather || k == Scatter) ||
			k.Reduces() != (k == AllReduce || k == Reduce || k == ReduceScatter) {
			t.Errorf("%v is misplaced", k)
		}
	}
	if OK.Failed() || Pending.Failed() || !Invalid.Failed() || !Forked.Failed() {
		t.Error("Failed is wrong")
	}
}

func TestCheckAccepts(t *testing.T) {
	for _, c := range []struct {
		op    Op
		rank  int
		size  int
		bytes uint64
	}{
		{Op{Kind: AllReduce, Type: Float32, In: 8, Out: 8}, 0, 2, 8},
		{Op{Kind: AllReduce, Type: Float32, Reduce: PremulSum, Factor: 0.5}, 0, 1, 0},
		{Op{Kind: Broadcast, Type: Float8E5M2, Root: 1, In: 3, Out: 3}, 1, 2, 3},
		{Op{Kind: Broadcast, Type: Int8, Root: 1, Out: 3}, 0, 2, 3},
		{Op{Kind: Broadcast, Type: Int8, Root: 1, In: 3, Out: 3}, 0, 2, 3},
		{Op{Kind: AllGather, Type: Int16, In: 4, Out: 12}, 2, 3, 4},
		{Op{Kind: Reduce, Type: Bool, Reduce: BOr, Root: 0, In: 4, Out: 4}, 0, 3, 4},
		{Op{Kind: Reduce, Type: Bool, Reduce: BOr, Root: 0, In: 4}, 1, 3, 4},
		{Op{Kind: Reduce, Type: Int8, Root: 0, In: 4, Out: 4}, 1, 3, 4},
		{Op{Kind: Barrier}, 0, 4, 0},
		{Op{Kind: AllGather, Type: Int16, In: 6, Out: 12, OutBlocks: []uint64{2, 4, 6}}, 2, 3, 6},
		{Op{Kind: ReduceScatter, Type: Int16, In: 12, Out: 4}, 2, 3, 4},
		{Op{Kind: ReduceScatter, Type: Int16, In: 12, Out: 2, InBlocks: []uint64{2, 10}}, 0, 2, 10},
		{Op{Kind: AllToAll, Type: Int16, In: 12, Out: 12}, 2, 3, 0},
		{Op{Kind: AllToAll, Type: Int16, In: 12, Out: 8, InBlocks: []uint64{4, 8}}, 0, 2, 0},
		{Op{Kind: Gather, Root: 1, In: 3, Out: 9}, 1, 3, 3},
		{Op{Kind: Gather, Root: 1, In: 3}, 0, 3, 3},
		{Op{Kind: Scatter, Root: 1, In: 9, Out: 3}, 1, 3, 3},
		{Op{Kind: Scatter, Root: 1, Out: 3}, 0, 3, 3},
		{Op{Kind: Send, Type: Int64, Root: 0, Tag: 7, In: 8}, 0, 1, 8}, // to oneself
		{Op{Kind: Recv, Type: Int64, Root: AnySource, Tag: math.MaxInt32, Out: 16}, 0, 2, 16},
	} {
		if err := c.op.Check(c.rank, c.size); err != nil {
			t.Errorf("%+v on rank %d of %d: %v", c.op, c.rank, c.size, err)
		}
		if got := c.op.Bytes(); got != c.bytes {
			t.Errorf("%+v has %d bytes, want %d", c.op, got, c.bytes)
		}
	}
}

func TestCheckRefusesWithAText(t *testing.T) {
	for _, c := range []struct {
		op   Op
		want string
	}{
		{Op{Kind: AllReduce, Type: Bool, Reduce: Avg}, "sagecomm: all_reduce: AVG is not defined for bool"},
		{Op{Kind: Reduce, Type: Float8E5M2}, "sagecomm: reduce: SUM is not defined for float8_e5m2"},
		{Op{Kind: KindCount}, "sagecomm: kind 11 is not known to this version"},
		{Op{Kind: Barrier, Type: DataTypeCount}, "sagecomm: barrier: rank 1: dtype 21 is not known to this version"},
		{Op{Kind: Barrier, Timeout: -time.Second}, "sagecomm: barrier: rank 1: timeout -1s is negative"},
		{Op{Kind: Barrier, Device: Device{Type: 64}}, "sagecomm: barrier: rank 1: device type 64, expected 0 to 63"},
		{Op{Kind: Barrier, Device: Device{Type: CUDA, Index: -1}}, "sagecomm: barrier: rank 1: device index -1 is negative"},
		{Op{Kind: Barrier, Device: Device{Type: CUDA}, Ordering: 2}, "sagecomm: barrier: rank 1: ordering 2, expected 0 to 1"},
		{Op{Kind: Broadcast, Root: 3}, "sagecomm: broadcast: rank 1: root 3 is outside the group, expected 0 to 2"},
		{Op{Kind: Reduce, Root: -1}, "sagecomm: reduce: rank 1: root -1 is outside the group, expected 0 to 2"},
		{Op{Kind: Send, Root: AnySource}, "sagecomm: send: rank 1: peer -1 is outside the group, expected 0 to 2"},
		{Op{Kind: Recv, Root: 9}, "sagecomm: recv: rank 1: peer 9 is outside the group, expected 0 to 2"},
		{Op{Kind: Send, Tag: -1}, "sagecomm: send: rank 1: tag -1, expected 0 to 2147483647"},
		{Op{Kind: AllReduce, Type: Int32, In: 4, Out: 8},
			"sagecomm: all_reduce: rank 1: input has 4 bytes and output 8, expected equal lengths"},
		{Op{Kind: AllReduce, Type: Int32, In: 5, Out: 5},
			"sagecomm: all_reduce: rank 1: input of 5 and output of 5 bytes are not whole elements of int32 (4 bytes each)"},
		{Op{Kind: AllGather, In: 4, Out: 8},
			"sagecomm: all_gather: rank 1: input has 4 bytes and output 8, expected an output 3 times as long as the input"},
		{Op{Kind: AllGather, In: 4, Out: 13},
			"sagecomm: all_gather: rank 1: input has 4 bytes and output 13, expected an output 3 times as long as the input"},
		{Op{Kind: Broadcast, Root: 1, In: 1}, "sagecomm: broadcast: rank 1: input has 1 bytes and output 0, expected equal lengths on the root"},
		{Op{Kind: Broadcast, Root: 0, In: 1, Out: 2}, "sagecomm: broadcast: rank 1: input has 1 bytes and output 2, expected no input, or one as long as the output"},
		{Op{Kind: Reduce, Root: 1, In: 1}, "sagecomm: reduce: rank 1: input has 1 bytes and output 0, expected equal lengths on the root"},
		{Op{Kind: Reduce, Root: 0, In: 1, Out: 2}, "sagecomm: reduce: rank 1: input has 1 bytes and output 2, expected no output, or one as long as the input"},
		{Op{Kind: Barrier, In: 1}, "sagecomm: barrier: rank 1: input has 1 bytes and output 0, expected no buffers"},
		{Op{Kind: Send, Out: 1}, "sagecomm: send: rank 1: input has 0 bytes and output 1, expected no output"},
		{Op{Kind: Recv, In: 1}, "sagecomm: recv: rank 1: input has 1 bytes and output 0, expected no input"},
	} {
		err := c.op.Check(1, 3)
		if err == nil || err.Error() != c.want {
			t.Errorf("%+v:\n got %v\nwant %s", c.op, err, c.want)
		}
	}
	if err := (Op{Kind: Barrier}).Check(3, 3); err == nil || err.Error() != "sagecomm: barrier: rank 3 is outside a group of 3 ranks" {
		t.Errorf("a rank outside the group: %v", err)
	}
}

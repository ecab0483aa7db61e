package pickle

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// everything holds values of each supported type, including the limits.
var everything = Dict{
	{"none", nil}, {"yes", true}, {"no", false},
	{"integers", []any{0, -1, math.MaxInt32, math.MinInt32, int64(math.MaxInt32) + 1, int64(math.MinInt64), uint64(math.MaxInt64)}},
	{"float", 0.1}, {"text", "a \"quoted\" ü\n"}, {"empty", []any{}},
	{"tuple", Tuple{"0", "default_pg"}}, {"lists", [][]int64{{1, 2}, {}}}, {"names", []string{"a", "b"}}, {"ranks", []int{3}},
	{"wide", []int64{4}}, {"nested", []Dict{{{"k", Dict{}}}}},
}

// Python reads a pickle of Marshal as the value that JSON gives for the same data.
func TestPythonReadsIt(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	data, err := Marshal(everything)
	require.NoError(t, err)
	path := t.TempDir() + "/data"
	require.NoError(t, os.WriteFile(path, data, 0o600))
	script := `import json, pickle, sys
data = pickle.load(open(sys.argv[1], "rb"))
assert type(data["tuple"]) is tuple and type(data["ranks"]) is list, data
print(json.dumps(data, separators=(",", ":"), ensure_ascii=False))`
	printed, err := exec.Command(python, "-c", script, path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	want, err := json.Marshal(everything)
	require.NoError(t, err)
	if got := strings.TrimSpace(string(printed)); got != string(want) {
		t.Errorf("Python reads\n%s\nexpected\n%s", got, want)
	}
}

func TestWhatIsNoPlainDataIsRefused(t *testing.T) {
	for _, v := range []any{struct{}{}, uint64(math.MaxUint64), []any{1i}, Dict{{"k", t}}, Tuple{t}} {
		if data, err := Marshal(v); err == nil {
			t.Errorf("%v became %q", v, data)
		}
	}
}

func TestGet(t *testing.T) {
	if everything.Get("float") != 0.1 || everything.Get("missing") != nil {
		t.Error(everything.Get("float"), everything.Get("missing"))
	}
}

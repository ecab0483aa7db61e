package topo

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	update = flag.Bool("update", false, "write the golden files of testdata anew")
	record = flag.String("record", "", "name of the fixture to write from this machine")
)

func trees(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.tree")
	if err != nil || len(files) < 4 {
		t.Fatalf("fixtures: %v, %v", files, err)
	}
	return files
}

func load(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return unpack(t, string(text))
}

// Each recorded tree gives the topology in its golden file. The tests of the rendering in Python use the golden files too.
func TestRecordedTreesReadAsTheirGoldenFiles(t *testing.T) {
	for _, file := range trees(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".tree")
		t.Run(name, func(t *testing.T) {
			got, err := json.MarshalIndent(Read(load(t, file)), "", "  ")
			require.NoError(t, err)
			got = append(got, '\n')
			golden := strings.TrimSuffix(file, ".tree") + ".json"
			if *update {
				require.NoError(t, os.WriteFile(golden, got, 0o666))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			if string(got) != string(want) {
				t.Errorf("%s differs (write it anew with -update, then look at the difference):\n%s", golden, got)
			}
		})
	}
}

func TestCoresPartitionTheOnlineCPUs(t *testing.T) {
	for _, file := range trees(t) {
		topology := Read(load(t, file))
		var all CPUSet
		for _, p := range topology.Packages {
			var cores CPUSet
			for _, c := range p.Cores {
				cores = append(cores, c.CPUs...)
			}
			slices.Sort(cores)
			if !slices.Equal(cores, p.CPUs) {
				t.Errorf("%s: package %d has cpus %v, its cores %v", file, p.ID, p.CPUs, cores)
			}
			all = append(all, cores...)
		}
		slices.Sort(all)
		if !slices.Equal(all, topology.Online) {
			t.Errorf("%s: cores have %v, online are %v", file, all, topology.Online)
		}
	}
}

func TestAnEmptyTreeIsAHostOfWhichNothingIsKnown(t *testing.T) {
	got, err := json.Marshal(Read(t.TempDir()))
	if err != nil || string(got) != `{"host":{},"process":{}}` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestThisMachineCanBeRead(t *testing.T) {
	topology := Read("/")
	if topology.Host.Name == "" || len(topology.Process.CPUs) == 0 {
		t.Errorf("host %+v, process %+v", topology.Host, topology.Process)
	}
	if _, err := json.Marshal(topology); err != nil {
		t.Error(err)
	}
}

// The record of this machine gives the same topology as the machine, so the recorder misses no file that Read reads.
func TestRecordOfThisMachineReadsLikeIt(t *testing.T) {
	r := recorder{seen: map[string]bool{}}
	want := read(tree{root: "/", opened: r.opened})
	slices.Sort(r.lines)
	text := "# Recorded; see fixture_test.go.\n" + strings.Join(r.lines, "\n") + "\n"
	got := Read(unpack(t, text))
	want.Host = got.Host // the host's identity is not recorded
	if a, b := marshal(t, got), marshal(t, want); a != b {
		t.Errorf("the record reads\n%s\nthe machine\n%s", a, b)
	}
	if *record != "" {
		require.NoError(t, os.WriteFile("testdata/"+*record+".tree", []byte(text), 0o666))
	}
}

func marshal(t *testing.T, topology Topology) string {
	t.Helper()
	b, err := json.Marshal(topology)
	require.NoError(t, err)
	return string(b)
}

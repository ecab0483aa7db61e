package algo

import (
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/cost"
	"sagecomm/algo/sendrecv"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

func TestSettingsAreParsed(t *testing.T) {
	tune, err := ParseTune(" channel.latency = 400 ns; slots.copy=20.5ps ;all_reduce:0-8K:ring@chunk=64K;policy=thresholds;network.step=1ms;rank.copy=0s;slots.hop=1us")
	require.NoError(t, err)
	want := []Setting{{"channel.latency", 400e-9}, {"slots.copy", 20.5e-12}, {"network.step", 1e-3}, {"rank.copy", 0}, {"slots.hop", 1e-6}}
	if len(tune.Settings) != len(want) || len(tune.Rules) != 1 || tune.Policy != "thresholds" {
		t.Fatalf("%+v: expected %d parameters, one rule and the policy thresholds", tune, len(want))
	}
	for i, s := range tune.Settings {
		if s.Name != want[i].Name || math.Abs(s.Seconds-want[i].Seconds) > 1e-18 {
			t.Errorf("%+v, want %+v", s, want[i])
		}
	}
	p, err := DefaultParams().with(tune.Settings)
	if err != nil || p.Channel.Latency != tune.Settings[0].Seconds || p.Network.Step != 1e-3 || p.Channel.Step != DefaultParams().Channel.Step {
		t.Errorf("%+v, %v: expected the parameters that are set, and defaults for the others", p, err)
	}
}

// Names of parameters in earlier versions are read and stand for the same parameters.
func TestEarlierNamesOfParameters(t *testing.T) {
	tune, err := ParseTune("board.hop=1us;board.fold=1ps;ring.byte=2ps")
	want := []Setting{{"slots.hop", 1e-6}, {"slots.reduce", 1e-12}, {"channel.byte", 2e-12}}
	if err != nil || len(tune.Settings) != len(want) {
		t.Fatalf("%+v, %v", tune.Settings, err)
	}
	for i, got := range tune.Settings {
		if got.Name != want[i].Name || math.Abs(got.Seconds-want[i].Seconds) > 1e-18 {
			t.Errorf("%+v, expected %+v", got, want[i])
		}
	}
	if _, err := ParseTune("board.hop=1us;slots.hop=2us"); err == nil {
		t.Error("a parameter is set twice, under two names")
	}
	file := File{Version: FileVersion, Entries: []Entry{{Machine: "A", Params: map[string]string{"board.hop": "1us"}}}}
	e, err := file.Put(Entry{Machine: "A", Params: map[string]string{"slots.hop": "2us"}})
	if err != nil || len(e.Params) != 1 || e.Params["slots.hop"] != "2us" {
		t.Errorf("%+v, %v: expected one parameter, slots.hop=2us", e, err)
	}
}

func TestSettingsAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"slots.hops=1ns":                         `"slots.hops=1ns": unknown parameter "slots.hops", there are: slots.hop, slots.flag`,
		"chunk=64K":                              `unknown parameter "chunk"`,
		"slots.hop=1":                            `time "1": expected a number with ps, ns, us, ms or s`,
		"slots.hop=":                             `time "": expected`,
		"slots.hop=xns":                          `time "xns": expected`,
		"slots.hop=infs":                         `time "infs": expected`,
		"slots.hop=-1ns":                         "slots.hop of -1e-09 seconds: expected 0 to 10ms",
		"slots.hop=20ms":                         "expected 0 to 10ms",
		"channel.byte=2us":                       "channel.byte of 2e-06 seconds: expected 0 to 1us a byte",
		"slots.hop=1ns;slots.hop=2ns":            `"slots.hop=2ns": slots.hop is set already`,
		"policy=best":                            `unknown policy "best", there are: predicted, thresholds`,
		"policy=predicted;policy=thresholds":     "policy predicted is set already",
		"all_reduce:ring@chunk=0":                "chunk 0: expected a multiple of 64 below 2G",
		"all_reduce:ring@chunk=inf":              "chunk inf: expected a multiple of 64 below 2G",
		"all_reduce:ring@chunk=63":               "chunk 63: expected a multiple of 64 below 2G",
		"all_reduce:two_shot@chunk=0":            "chunk 0: expected a multiple of 64 from 64 to 256K",
		"all_reduce:two_shot@chunk=99999999999G": `size "99999999999G"`,
	} {
		if _, err := ParseTune(text); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "SAGECOMM_TUNE: ") {
			t.Errorf("%s:\n got %v\nwant %s", text, err, want)
		}
	}
}

// Every number of Params has a name, a field of its own and bounds.
func TestEveryParameterHasAName(t *testing.T) {
	numbers := 0
	var count func(v reflect.Value)
	count = func(v reflect.Value) {
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Struct {
				count(f)
			} else {
				numbers++
			}
		}
	}
	count(reflect.ValueOf(Params{}))
	if numbers != len(parameters) {
		t.Errorf("%d numbers, %d names", numbers, len(parameters))
	}
	var p Params
	for i, one := range parameters {
		*one.in(&p) = float64(i+1) * 1e-9
	}
	for i, one := range parameters {
		if got := *one.in(&p); got != float64(i+1)*1e-9 {
			t.Errorf("%s shares its place with another one", one.name)
		}
		bad := DefaultParams()
		*one.in(&bad) = math.NaN()
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), one.name) {
			t.Errorf("%s is not a number: %v", one.name, err)
		}
	}
	if err := DefaultParams().Validate(); err != nil {
		t.Error(err)
	}
}

// The default of a channel follows from the measured costs of slots.
func TestCostsOfChannelsFollowFromThoseOfSlots(t *testing.T) {
	b, p := cost.DefaultMemory(), DefaultParams()
	if want := (cost.Link{Latency: b.Hop, Byte: b.Copy + b.Claim + b.Far + 2*b.Reduce, Step: b.Step}); p.Channel != want {
		t.Errorf("%+v, want %+v", p.Channel, want)
	}
}

func TestSettingsMoveTheChoice(t *testing.T) {
	shape := Shape{Size: 4}
	slow := selectorOf(t, shape, DefaultParams(), "slots.hop=1ms;slots.step=1ms")
	if c := slow.Choose(coll.AllGather, 1000); c.Transport != Channels {
		t.Errorf("%+v is chosen where slots are slow, expected a sendrecv plan", c)
	}
	plain := selectorOf(t, shape, DefaultParams(), "")
	if slow.Fingerprint() == plain.Fingerprint() {
		t.Error("parameters are not part of the fingerprint")
	}
	// A parameter must be the same on all ranks even if it changes no choice.
	if other := selectorOf(t, shape, DefaultParams(), "network.byte=1ns"); other.Fingerprint() == plain.Fingerprint() {
		t.Error("a parameter without effect is not part of the fingerprint")
	}
}

func TestPolicyOfThresholds(t *testing.T) {
	for _, c := range []struct {
		shape       Shape
		short, long string
	}{
		{Shape{Size: 8}, sendrecv.RecursiveDoubling, sendrecv.Ring},
		{Shape{Size: 6}, sendrecv.Ring, sendrecv.Ring},
		{Shape{Size: 8, Apart: true, Hosts: hosts(2, 4)}, sendrecv.RecursiveDoubling, sendrecv.DoubleTree},
		{Shape{Size: 6, Apart: true, Hosts: hosts(2, 3)}, sendrecv.Ring, sendrecv.DoubleTree},
	} {
		s := selectorOf(t, c.shape, DefaultParams(), "policy=thresholds")
		for bytes, want := range map[uint64]string{0: c.short, 999_999: c.short, 1_000_000: c.long, 1 << 33: c.long} {
			if got := s.Choose(coll.AllReduce, bytes); got.Algorithm != want || got.Transport != Channels {
				t.Errorf("%+v, %d bytes: %+v, want %s", c.shape, bytes, got, want)
			}
		}
		if got, want := s.Boundaries(coll.Broadcast), selectorOf(t, c.shape, DefaultParams(), "").Boundaries(coll.Broadcast); !reflect.DeepEqual(got, want) {
			t.Errorf("the policy changes broadcast: %v, predicted %v", got, want)
		}
	}
	// A user's rule overrides the policy.
	s := selectorOf(t, Shape{Size: 8}, DefaultParams(), "all_reduce:0-4K:one_shot;policy=thresholds")
	if c := s.Choose(coll.AllReduce, 4096); c.Algorithm != shmplan.OneShot {
		t.Errorf("%+v is chosen, expected one_shot by the user's rule", c)
	}
	if got, want := s.Describe(coll.AllReduce), "4096-999999:recursive_doubling@chunk=65536 (policy thresholds), 999999-inf:ring"; !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
	selectorOf(t, Shape{Size: 1}, DefaultParams(), "policy=thresholds")
	if a, b := selectorOf(t, Shape{Size: 8}, DefaultParams(), "policy=predicted"), selector(t, 8, ""); a.Fingerprint() != b.Fingerprint() {
		t.Error("policy=predicted differs from the default")
	}
}

// A rule survives being read and written.
func TestRulesAreWrittenAsTheyAreRead(t *testing.T) {
	for _, text := range []string{"all_reduce:ring", "all_reduce:0-8K:one_shot", "reduce:1000-3M:two_shot@chunk=128K", "broadcast:2G-inf:chain@chunk=64"} {
		rule, err := parseRule(text)
		if err != nil || rule.String() != text {
			t.Errorf("%s is written %s, %v", text, rule, err)
		}
	}
}

const tuned = `{"version": 1, "entries": [
  {"machine": "A", "params": {"channel.latency": "1us"}, "rules": ["all_reduce:two_shot"]},
  {"machine": "A", "hosts": 2, "rules": ["all_reduce:ring"]},
  {"machine": "A", "size": 4, "params": {"slots.hop": "99ns", "slots.flag": "9ns"}, "rules": ["all_reduce:0-64:two_shot", "all_reduce:64-inf:one_shot@chunk=64K"]},
  {"machine": "B", "rules": ["barrier:one_shot"]}
]}`

func TestFilesAreForMachinesAndShapes(t *testing.T) {
	f, err := ParseFile("tuned.json", []byte(tuned))
	require.NoError(t, err)
	for _, c := range []struct {
		machine  string
		shape    Shape
		settings int
		rules    []string
	}{
		{"A", Shape{Size: 4}, 2, []string{"all_reduce:0-64:two_shot", "all_reduce:64-inf:one_shot@chunk=64K"}},
		{"A", Shape{Size: 4, Hosts: hosts(2, 2)}, 2, []string{"all_reduce:0-64:two_shot", "all_reduce:64-inf:one_shot@chunk=64K"}},
		{"A", Shape{Size: 6, Hosts: hosts(2, 3)}, 0, []string{"all_reduce:ring"}},
		{"A", Shape{Size: 6}, 1, []string{"all_reduce:two_shot"}},
		{"B", Shape{Size: 4}, 0, []string{"barrier:one_shot"}},
		{"C", Shape{Size: 4}, 0, nil},
	} {
		tune, err := f.For("tuned.json", c.machine, c.shape)
		var rules []string
		for _, r := range tune.Rules {
			rules = append(rules, r.String())
		}
		if err != nil || len(tune.Settings) != c.settings || !reflect.DeepEqual(rules, c.rules) {
			t.Errorf("%s, %+v: %+v, %v, want %v", c.machine, c.shape, tune, err, c.rules)
		}
	}
	text, err := f.Write()
	require.NoError(t, err)
	if again, err := ParseFile("again", text); err != nil || !reflect.DeepEqual(f, again) {
		t.Errorf("%s\n%v", text, err)
	}
}

// The variable overrides the file, rule by rule and parameter by parameter. Its policy replaces all rules of the file.
func TestFilesComeBelowTheVariable(t *testing.T) {
	f, err := ParseFile("tuned.json", []byte(tuned))
	require.NoError(t, err)
	shape := Shape{Size: 4}
	file, err := f.For("tuned.json", "A", shape)
	require.NoError(t, err)
	with := func(text string) *Selector {
		own, err := ParseTune(text)
		require.NoError(t, err)
		s, err := NewSelector(shape, DefaultParams(), own.Over(file))
		require.NoError(t, err)
		return s
	}
	s := with("all_reduce:1K-2K:ring;slots.flag=7ns")
	for bytes, want := range map[uint64]string{64: shmplan.TwoShot, 1024: shmplan.OneShot, 2048: sendrecv.Ring, 4096: shmplan.OneShot} {
		if c := s.Choose(coll.AllReduce, bytes); c.Algorithm != want {
			t.Errorf("%d bytes: %+v, want %s", bytes, c, want)
		}
	}
	if b := s.params.Slots; math.Abs(b.Hop-99e-9) > 1e-18 || math.Abs(b.Flag-7e-9) > 1e-18 {
		t.Errorf("%+v: expected the hop of the file and the flag of the variable", b)
	}
	if got := s.Describe(coll.AllReduce); !strings.Contains(got, "(tuned.json), 1024-2048:ring@chunk=262144 (SAGECOMM_TUNE)") {
		t.Error(got)
	}
	if c := with("policy=thresholds").Choose(coll.AllReduce, 64); c.Algorithm != sendrecv.RecursiveDoubling {
		t.Errorf("%+v is chosen, expected recursive_doubling by the policy", c)
	}
	if c := with("policy=predicted").Choose(coll.AllReduce, 64); c.Algorithm != shmplan.OneShot {
		t.Errorf("%+v is chosen, expected one_shot by the prediction", c)
	}
}

func TestFilesAreRefused(t *testing.T) {
	entry := func(fields string) string { return `{"version": 1, "entries": [{` + fields + `}]}` }
	for text, want := range map[string]string{
		`{"version": 2}`:                          "f: version 2, expected 1: write it again with `python -m sagecomm tune`",
		`{"version": 1, "entry": []}`:             `f: json: unknown field "entry"`,
		`[`:                                       "f: unexpected EOF",
		`{"version": 1} {}`:                       "f: there is more text after",
		entry(`"size": 4`):                        "f: entry 0 (): it names no machine",
		entry(`"machine": "A", "size": 1025`):     "f: entry 0 (A): groups of 1025 ranks: expected 1 to 1024",
		entry(`"machine": "A", "hosts": -1`):      "groups on -1 hosts",
		entry(`"machine": "A", "rules": ["x:y"]`): `rule "x:y": unknown collective "x"`,
		entry(`"machine": "A", "rules": ["reduce:chain", "reduce:one_shot"]`):        `rule "reduce:one_shot" overlaps rule "reduce:chain"`,
		entry(`"machine": "A", "params": {"slots.hop": "1h"}`):                       `time "1h"`,
		entry(`"machine": "A", "params": {"slots.hop": "1ns", " slots.hop": "2ns"}`): "slots.hop is set twice",
		entry(`"machine": "A"}, {"machine": "A"`):                                    "f: entries 0 and 1 are for the same groups of A",
	} {
		if _, err := ParseFile("f", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n got %v\nwant %s", text, err, want)
		}
	}
}

// The file in the comment of [File] can be read.
func TestDocumentedFileIsAccepted(t *testing.T) {
	source, err := os.ReadFile("file.go")
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(source), "It is JSON:\n//\n")
	block, _, found := strings.Cut(after, "\n//\n// An entry")
	f, err := ParseFile("comment", []byte(strings.ReplaceAll(block, "//\t", "")))
	if !found || err != nil || len(f.Entries) != 1 || len(f.Entries[0].Rules) == 0 || len(f.Entries[0].Params) == 0 {
		t.Errorf("%+v, %v", f, err)
	}
}

// docs/tuning.md has every parameter with its default, every policy, and a file that can be read.
func TestTheDocumentIsRight(t *testing.T) {
	source, err := os.ReadFile("../docs/tuning.md")
	require.NoError(t, err)
	defaults := map[string]string{}
	for line := range strings.Lines(string(source)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") || !strings.Contains(cells[1], ".") {
			continue
		}
		values := strings.Split(cells[3], ",")
		for i, name := range strings.Split(cells[1], ",") {
			if i < len(values) {
				defaults[strings.Trim(name, " `")] = values[i]
			}
		}
	}
	if len(defaults) != len(parameters) {
		t.Errorf("%d parameters with a default, there are %d", len(defaults), len(parameters))
	}
	p := DefaultParams()
	for _, one := range parameters {
		got, err := parseTime(defaults[one.name])
		if want := *one.in(&p); err != nil || math.Abs(got-want) > 1e-15 {
			t.Errorf("the default of %s is %q, %v, expected %g s", one.name, defaults[one.name], err, want)
		}
	}
	for _, name := range Policies() {
		if !strings.Contains(string(source), "| `"+name+"` |") {
			t.Errorf("policy %s is missing", name)
		}
	}
	_, after, _ := strings.Cut(string(source), "```json\n")
	block, _, found := strings.Cut(after, "```")
	if f, err := ParseFile("tuning.md", []byte(block)); !found || err != nil || len(f.Entries) != 1 {
		t.Errorf("%+v, %v", f, err)
	}
}

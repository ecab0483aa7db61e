package env

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func resolve(t *testing.T, environ []string, options map[string]string) *Settings {
	t.Helper()
	s, err := Resolve(environ, options)
	require.NoError(t, err)
	return s
}

func TestDefaults(t *testing.T) {
	for _, s := range []*Settings{nil, resolve(t, nil, nil), resolve(t, []string{"SAGECOMM_SPIN=", "PATH=/bin"}, nil)} {
		equal(t, Debug.Get(s), Warn)
		equal(t, Tune.Get(s), "")
		equal(t, ShmAttach.Get(s), []string{"proc", "scm", "tmpfs"})
		equal(t, ShmDir.Get(s), "/dev/shm")
		equal(t, ArenaSize.Get(s), int64(1<<30))
		equal(t, Timeout.Get(s).Given, false)
		equal(t, Spin.Get(s).Given, false)
		equal(t, ProgressCPU.Get(s).Given, false)
		equal(t, Kernels.Get(s), "auto")
		equal(t, HostID.Get(s), "")
	}
}

func TestEnvironmentWinsOverOptionsOverDefault(t *testing.T) {
	s := resolve(t, []string{"SAGECOMM_DEBUG=trace", "SAGECOMM_DEBUG=WARN", "SAGECOMM_SPIN=25", "SAGECOMM_KERNELS="},
		map[string]string{"debug": "info", "timeout": "1.5", "kernels": "AVX2"})
	equal(t, Debug.Get(s), Trace)
	equal(t, s.Origin("SAGECOMM_DEBUG"), FromEnvironment)
	equal(t, Timeout.Get(s), Optional[time.Duration]{1500 * time.Millisecond, true})
	equal(t, s.Origin("SAGECOMM_TIMEOUT"), FromOptions)
	equal(t, Kernels.Get(s), "avx2")
	equal(t, Spin.Get(s), Optional[time.Duration]{25 * time.Microsecond, true})
	equal(t, s.Origin("SAGECOMM_SHM_DIR"), FromDefault)
}

func TestAcceptedForms(t *testing.T) {
	s := resolve(t, []string{"SAGECOMM_SHM_ATTACH=tmpfs, PROC", "SAGECOMM_ARENA_SIZE=64MiB", "SAGECOMM_PROGRESS_CPU=8,0-2,1",
		"SAGECOMM_SHM_DIR=/a/../b", "SAGECOMM_TIMEOUT=group"}, nil)
	equal(t, ShmAttach.Get(s), []string{"tmpfs", "proc"})
	equal(t, ArenaSize.Get(s), int64(64<<20))
	equal(t, ProgressCPU.Get(s), Optional[[]int]{[]int{0, 1, 2, 8}, true})
	equal(t, ShmDir.Get(s), "/b")
	equal(t, Timeout.Get(s).Given, false)
}

func TestBadValuesNameVariableValueAndAccepted(t *testing.T) {
	for _, c := range []struct{ entry, accepted string }{
		{"SAGECOMM_DEBUG=LOUD", "one of WARN, INFO, TRACE"},
		{"SAGECOMM_SHM_ATTACH=proc,cma", "out of proc,scm,tmpfs"},
		{"SAGECOMM_SHM_ATTACH=proc,proc", "stands twice"},
		{"SAGECOMM_SHM_DIR=shm", "absolute path"},
		{"SAGECOMM_ARENA_SIZE=1K", "from 16M to 1T"},
		{"SAGECOMM_ARENA_SIZE=99999999999G", "from 16M to 1T"},
		{"SAGECOMM_ARENA_SIZE=-16M", "from 16M to 1T"},
		{"SAGECOMM_TIMEOUT=0", "seconds, more than 0, or group"},
		{"SAGECOMM_TIMEOUT=NaN", "seconds"},
		{"SAGECOMM_TIMEOUT=1e300", "seconds"},
		{"SAGECOMM_LINK_TIMEOUT=0.9", "seconds, 1 to 60"},
		{"SAGECOMM_LINK_TIMEOUT=61", "seconds, 1 to 60"},
		{"SAGECOMM_DATA_CONNECTIONS=0", "number, 1 to 8"},
		{"SAGECOMM_DATA_CONNECTIONS=9", "number, 1 to 8"},
		{"SAGECOMM_ADVERTISE=host0", "address such as"},
		{"SAGECOMM_ADVERTISE=10.0.0.2:0", "address such as"},
		{"SAGECOMM_ADVERTISE=0.0.0.0:5", "others cannot dial it"},
		{"SAGECOMM_SPIN=1.5", "microseconds"},
		{"SAGECOMM_PROGRESS_CPU=3-1", "list of cores"},
		{"SAGECOMM_PROGRESS_CPU=0-99999999", "list of cores"},
		{"SAGECOMM_FUSION=on", "one of off, static"},
		{"SAGECOMM_KERNELS=sse", "one of auto, avx2, avx512, portable"},
	} {
		name, value, _ := strings.Cut(c.entry, "=")
		_, err := Resolve([]string{c.entry}, nil)
		if err == nil {
			t.Errorf("%s was accepted", c.entry)
			continue
		}
		for _, part := range []string{name, value, c.accepted} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is not in %q", c.entry, part, err)
			}
		}
	}
}

func TestEveryBadValueIsReported(t *testing.T) {
	_, err := Resolve([]string{"SAGECOMM_DEBUG=x"}, map[string]string{"spin": "y", "tuen": "z"})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{`SAGECOMM_DEBUG="x"`, `option spin="y"`, `unknown option "tuen"; did you mean tune?`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %q", part, err)
		}
	}
}

func TestUnknownNamesWarnOnceWithTheNearest(t *testing.T) {
	s := resolve(t, []string{"SAGECOMM_DEBIG=INFO", "SAGECOMM_DEBIG=TRACE", "SAGECOMM_SHM_DIRECTORY=/x", "SAGECOMM_ZZZZZZZZ=1"}, nil)
	equal(t, s.Warnings(), []string{
		"sagecomm: SAGECOMM_DEBIG is set but there is no such variable; did you mean SAGECOMM_DEBUG?",
		"sagecomm: SAGECOMM_SHM_DIRECTORY is set but there is no such variable; did you mean SAGECOMM_SHM_DIR?",
		"sagecomm: SAGECOMM_ZZZZZZZZ is set but there is no such variable; `python -m sagecomm env` lists what there is",
	})
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "abc", 3}, {"abc", "abc", 0}, {"kitten", "sitting", 3}, {"DEBGU", "DEBUG", 2}} {
		equal(t, distance(c.a, c.b), c.want)
		equal(t, distance(c.b, c.a), c.want)
	}
}

func TestBytesRoundTrip(t *testing.T) {
	for _, n := range []int64{0, 1, 1023, 1024, 1536, 1 << 20, 3 << 30, 1 << 40} {
		got, err := ParseBytes(FormatBytes(n))
		if err != nil || got != n {
			t.Errorf("%d -> %q -> %d, %v", n, FormatBytes(n), got, err)
		}
	}
}

func TestDescribeShowsValuesAndRefusals(t *testing.T) {
	var list []map[string]string
	require.NoError(t, json.Unmarshal(DescribeJSON([]string{"SAGECOMM_SPIN=x", "SAGECOMM_DEBUG=INFO"}), &list))
	equal(t, len(list), len(catalogue))
	for _, d := range list {
		for _, field := range []string{"name", "type", "origin", "sentence"} {
			if d[field] == "" {
				t.Errorf("%s: no %s", d["name"], field)
			}
		}
		switch d["name"] {
		case "SAGECOMM_DEBUG":
			equal(t, d["value"], "INFO")
			equal(t, d["origin"], "environment")
		case "SAGECOMM_SPIN":
			if !strings.Contains(d["error"], "microseconds") {
				t.Errorf("SAGECOMM_SPIN=x shows %v", d)
			}
		}
	}
}

// A secret is not shown.
func TestDescribeHidesTheSecret(t *testing.T) {
	const secret = "of the job, which nobody may see"
	for _, name := range []string{"SECRET", "SECRETS", "SECRETFILE", "SECRT", "JOB_SECRET"} {
		require.NotContains(t, string(DescribeJSON([]string{Prefix + name + "=" + secret})), secret, name)
	}
	s := resolve(t, []string{"SAGECOMM_SECRET=" + secret}, nil)
	equal(t, Secret.Get(s), secret)
}

func TestDescribeWarnsOfUnknownNames(t *testing.T) {
	var list []map[string]string
	require.NoError(t, json.Unmarshal(DescribeJSON([]string{"SAGECOMM_DEBIG=INFO", "PATH=/bin"}), &list))
	equal(t, len(list), len(catalogue)+1)
	last := list[len(list)-1]
	equal(t, last["name"], "SAGECOMM_DEBIG")
	equal(t, last["warning"], "sagecomm: SAGECOMM_DEBIG is set but there is no such variable; did you mean SAGECOMM_DEBUG?")
}

func TestDocumentationIsCurrent(t *testing.T) {
	got, err := os.ReadFile("../../docs/environment.md")
	require.NoError(t, err)
	if string(got) != Markdown() {
		t.Error("docs/environment.md is not what the list of variables gives: run `go generate ./internal/env`")
	}
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

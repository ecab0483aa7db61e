package pgbackend

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"strings"

	"sagecomm/algo"
	"sagecomm/internal/env"
	"sagecomm/internal/shmem"
)

// setup holds the settings that must be equal on all ranks of a group. Ranks that differ in one would choose different
// algorithms, or would not meet.
type setup struct {
	Protocol  int    `json:"protocol"`
	Size      int    `json:"size"`
	Tables    uint64 `json:"tables"` // hash of the parameters from which the library predicts, and of the order of its engines
	Tune      string `json:"tune,omitempty"`
	TuneFile  string `json:"tune_file,omitempty"`
	TuneHash  uint64 `json:"tune_hash,omitempty"` // hash of the file's content
	Probe     bool   `json:"probe"`
	ShmAttach string `json:"shm_attach"`
	Engine    string `json:"engine"`
	Fusion    bool   `json:"fusion,omitempty"`

	// "" is the default.
	LinkTimeout     string `json:"link_timeout,omitempty"`
	DataConnections string `json:"data_connections,omitempty"`
}

func (g *Group) setup(methods []shmem.Method) setup {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, algo.Geometry(), algo.DefaultParams(), algo.DeviceEngines()) // writing to a hash does not fail
	names := make([]string, len(methods))
	for i, m := range methods {
		names[i] = string(m)
	}
	w := g.tuningSettings
	return setup{protocolVersion, g.size, h.Sum64(), w.text, w.fileName, w.fileHash, w.probe, strings.Join(names, ","), env.Engine.Get(g.settings), env.Fusion.Get(g.settings),
		unlessDefault(env.LinkTimeout, g.settings), unlessDefault(env.DataConnections, g.settings)}
}

// unlessDefault returns the value of a variable as text, "" for its default.
func unlessDefault[T comparable](v env.Variable[T], settings *env.Settings) string {
	if v.Get(settings) == v.Get(nil) {
		return ""
	}
	return fmt.Sprint(v.Get(settings))
}

// difference returns an error that says why ranks a and b cannot form a group, or nil. All ranks get the same text.
func difference(a, b int, of, other setup) error {
	differ := func(what, one, two, remedy string) error {
		return fmt.Errorf("ranks %d and %d are set up differently: %s is %s on rank %d and %s on rank %d; %s", a, b, what, one, a, two, b, remedy)
	}
	variable := func(name, one, two string) error {
		quoted := func(text string) string {
			if text == "" {
				return "not set"
			}
			return fmt.Sprintf("%q", text)
		}
		return differ(name, quoted(one), quoted(two), "set it alike on all ranks")
	}
	onOff := func(on bool) string { return map[bool]string{true: "on", false: "off"}[on] }
	switch {
	case of.Protocol != other.Protocol || of.Tables != other.Tables:
		return differ("the sagecomm version", fmt.Sprintf("one of protocol %d, tables %016x", of.Protocol, of.Tables),
			fmt.Sprintf("one of protocol %d, tables %016x", other.Protocol, other.Tables), "install the same version for all ranks")
	case of.Size != other.Size:
		return differ("the number of ranks", fmt.Sprint(of.Size), fmt.Sprint(other.Size), "give all ranks the same world size, or list of ranks of the group")
	case of.Tune != other.Tune:
		return variable(env.Tune.Name(), of.Tune, other.Tune)
	case (of.TuneFile == "") != (other.TuneFile == ""):
		return variable(env.TuneFile.Name(), of.TuneFile, other.TuneFile)
	case of.TuneHash != other.TuneHash:
		return differ("the content of "+env.TuneFile.Name(), fmt.Sprintf("%s (hash %016x)", of.TuneFile, of.TuneHash),
			fmt.Sprintf("%s (hash %016x)", other.TuneFile, other.TuneHash), "give all ranks the same file")
	case of.Probe != other.Probe:
		return variable(env.Probe.Name(), onOff(of.Probe), onOff(other.Probe))
	case of.Engine != other.Engine:
		return variable(env.Engine.Name(), of.Engine, other.Engine)
	case of.Fusion != other.Fusion:
		offStatic := func(on bool) string { return map[bool]string{true: "static", false: "off"}[on] }
		return variable(env.Fusion.Name(), offStatic(of.Fusion), offStatic(other.Fusion))
	case of.LinkTimeout != other.LinkTimeout:
		return variable(env.LinkTimeout.Name(), of.LinkTimeout, other.LinkTimeout)
	case of.DataConnections != other.DataConnections:
		return variable(env.DataConnections.Name(), of.DataConnections, other.DataConnections)
	case of.ShmAttach != other.ShmAttach:
		return variable(env.ShmAttach.Name(), cmp.Or(of.ShmAttach, "nothing"), cmp.Or(other.ShmAttach, "nothing"))
	}
	return nil
}

// differ reports whether only some ranks have something, and returns a rank with it and one without: the same on all
// ranks.
func (g *Group) differ(has func(*member) bool) (with, without int, differ bool) {
	for rank := range g.members {
		switch first := has(&g.members[0]); {
		case has(&g.members[rank]) == first:
		case first:
			return 0, rank, true
		default:
			return rank, 0, true
		}
	}
	return 0, 0, false
}

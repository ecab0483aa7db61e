package cluster

import (
	"encoding/json"
	"errors"
	"strings"

	"sagecomm/internal/coll"
)

// question is a question in JSON, see [Answer].
type question struct {
	Cluster string `json:"cluster"` // the text of the description
	Op      string `json:"op"`
	Bytes   uint64 `json:"bytes"`
	Hosts   int    `json:"hosts"` // replaces the number of the description; 0: as described
	Method  Method `json:"method"`
}

// answer is the answer to a question.
type answer struct {
	Cluster     *Cluster     `json:"cluster,omitempty"` // with its defaults
	Op          string       `json:"op,omitempty"`
	Bytes       uint64       `json:"bytes"`
	Ranks       int          `json:"ranks,omitempty"`
	Predictions []Prediction `json:"predictions,omitempty"`
	Error       string       `json:"error,omitempty"`
}

// Answer reads a question in JSON and returns the predictions in JSON:
//
//	{"cluster": "text of a description", "op": "all_reduce", "bytes": 8, "hosts": 0, "method": ""}
//	{"cluster": {...}, "op": "all_reduce", "bytes": 8, "ranks": 4096, "predictions": [...]} or {"error": "..."}
//
// A number of hosts replaces that of the description; a switch then has at most that many hosts.
func Answer(text []byte) ([]byte, error) {
	var q question
	a, err := answer{}, json.Unmarshal(text, &q)
	if err == nil {
		a, err = q.answer()
	}
	if err != nil {
		a = answer{Error: err.Error()}
	}
	return json.Marshal(a)
}

// answer checks the question and predicts.
func (q question) answer() (answer, error) {
	kind, ok := coll.ParseKind(q.Op)
	if !ok || !kind.Collective() {
		return answer{}, errors.New("op: " + q.Op + ": expected one of " + strings.Join(ops(), ", "))
	}
	if q.Method != Either && q.Method != Played && q.Method != Closed {
		return answer{}, errors.New("method: " + string(q.Method) + ": expected \"" + string(Played) + "\" or \"" +
			string(Closed) + "\"")
	}
	c, err := Parse([]byte(q.Cluster))
	if err == nil && q.Hosts != 0 {
		c.Hosts, c.HostsPerSwitch = q.Hosts, min(c.HostsPerSwitch, q.Hosts)
		if c.HostsPerSwitch == c.Hosts {
			c.Oversubscription = 1 // there is no other switch
		}
		err = c.check()
	}
	if err != nil {
		return answer{}, err
	}
	if kind == coll.Barrier {
		q.Bytes = 0
	}
	return answer{Cluster: &c, Op: q.Op, Bytes: q.Bytes, Ranks: c.Ranks(),
		Predictions: c.Predict(kind, q.Bytes, q.Method)}, nil
}

// ops returns the names of the collectives.
func ops() (names []string) {
	for kind := coll.Kind(0); kind.Collective(); kind++ {
		names = append(names, kind.String())
	}
	return names
}

package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"sagecomm/algo/cost"
)

// MostRanks bounds the ranks of a cluster.
const MostRanks = 65_536

// Cluster describes hosts that are all alike and the links between them. Ranks are numbered host by host. A key that is
// left out of the JSON, or 0, has a default.
type Cluster struct {
	Name         string `json:"name,omitempty"`
	Hosts        int    `json:"hosts"`
	RanksPerHost int    `json:"ranks_per_host"`
	// Inside and Between name the links inside a host and between hosts: one of Links, or of those that are known.
	Inside  string          `json:"inside"`
	Between string          `json:"between,omitempty"` // may be left out where there is one host
	Links   map[string]Link `json:"links,omitempty"`
	// NICs is how many links to the fabric a host has. Consecutive ranks share a link; by default each rank has one to
	// itself.
	NICs int `json:"nics_per_host,omitempty"`
	// HostsPerSwitch is how many consecutive hosts are behind one switch, by default all of them. Oversubscription is
	// the ratio of what these hosts can send to what the switch can pass on to other switches, 1 by default.
	HostsPerSwitch   int     `json:"hosts_per_switch,omitempty"`
	Oversubscription float64 `json:"oversubscription,omitempty"`
	Reduce           float64 `json:"reduce_gb_per_s,omitempty"` // GB of results per second that a rank reduces
	Copy             float64 `json:"copy_gb_per_s,omitempty"`   // GB per second that a rank copies
	Capacity         int     `json:"channel_messages,omitempty"`
}

// Defaults of a cluster. A rank reduces and copies at the speed that algo.DefaultParams gives for a core of a server:
// 20 ps a byte for each of two operands, and 20 ps a byte copied. Channels have four places, as in the runner.
const (
	DefaultReduce   = 25. // GB/s
	DefaultCopy     = 50. // GB/s
	DefaultCapacity = 4
)

// Error is a mistake in a description.
type Error struct {
	Where string // the key, or the position in the text
	What  string
}

func (e *Error) Error() string { return fmt.Sprintf("cluster: %s: %s", e.Where, e.What) }

// wrong returns an *[Error].
func wrong(where, format string, args ...any) error {
	return &Error{where, fmt.Sprintf(format, args...)}
}

// Parse reads a description in JSON, fills in defaults and checks it. Errors are of type *[Error].
func Parse(text []byte) (Cluster, error) {
	var c Cluster
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &kind) && kind.Field != "":
			return c, wrong(kind.Field, "%s, expected %v", kind.Value, kind.Type)
		case errors.Is(err, io.EOF):
			return c, wrong("byte 0", "the description is empty")
		case errors.As(err, &kind):
			return c, wrong(fmt.Sprintf("byte %d", kind.Offset), "%s, expected a JSON object that describes a cluster", kind.Value)
		case errors.As(err, &syntax):
			return c, wrong(fmt.Sprintf("byte %d", syntax.Offset), "%v", err)
		}
		return c, wrong(fmt.Sprintf("byte %d", d.InputOffset()), "%v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return c, wrong(fmt.Sprintf("byte %d", d.InputOffset()), "something follows the description")
	}
	c.fill()
	return c, c.check()
}

// fill replaces zeros by defaults.
func (c *Cluster) fill() {
	if c.NICs == 0 {
		c.NICs = c.RanksPerHost
	}
	if c.HostsPerSwitch == 0 {
		c.HostsPerSwitch = c.Hosts
	}
	for of, value := range map[*float64]float64{&c.Oversubscription: 1, &c.Reduce: DefaultReduce, &c.Copy: DefaultCopy} {
		if *of == 0 {
			*of = value
		}
	}
	if c.Capacity == 0 {
		c.Capacity = DefaultCapacity
	}
}

// check returns an error if no cluster can have the description.
func (c *Cluster) check() error {
	switch {
	case c.Hosts < 1 || c.Hosts > MostRanks:
		return wrong("hosts", "%d, expected 1 to %d", c.Hosts, MostRanks)
	case c.RanksPerHost < 1 || c.RanksPerHost > MostRanks/c.Hosts:
		return wrong("ranks_per_host", "%d, expected 1 to %d, since there are at most %d ranks",
			c.RanksPerHost, MostRanks/c.Hosts, MostRanks)
	case c.NICs < 1 || c.RanksPerHost%c.NICs != 0:
		return wrong("nics_per_host", "%d, expected a divisor of ranks_per_host, which is %d", c.NICs, c.RanksPerHost)
	case c.HostsPerSwitch < 1 || c.Hosts%c.HostsPerSwitch != 0:
		return wrong("hosts_per_switch", "%d, expected a divisor of hosts, which is %d", c.HostsPerSwitch, c.Hosts)
	case c.Oversubscription < 1 || !finite(c.Oversubscription):
		return wrong("oversubscription", "%g, expected at least 1", c.Oversubscription)
	case c.Oversubscription > 1 && c.HostsPerSwitch == c.Hosts:
		return wrong("oversubscription", "%g, but all hosts are behind one switch: give hosts_per_switch", c.Oversubscription)
	case c.Capacity < 1 || c.Capacity > 1<<20:
		return wrong("channel_messages", "%d, expected 1 to %d", c.Capacity, 1<<20)
	}
	if err := positive("reduce_gb_per_s", c.Reduce); err != nil {
		return err
	}
	if err := positive("copy_gb_per_s", c.Copy); err != nil {
		return err
	}
	for name, l := range c.Links {
		if err := l.check("links." + name); err != nil {
			return err
		}
	}
	if _, err := c.link("inside", c.Inside); err != nil {
		return err
	}
	if c.Hosts > 1 {
		_, err := c.link("between", c.Between)
		return err
	}
	return nil
}

// finite reports whether a number is neither infinite nor NaN.
func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// positive refuses a rate outside the range for which all times fit into femtoseconds.
func positive(where string, gb float64) error {
	if !(gb >= 1e-3 && gb <= 1e6) {
		return wrong(where, "%g GB/s, expected 0.001 to 1000000", gb)
	}
	return nil
}

// Ranks returns the number of ranks.
func (c Cluster) Ranks() int { return c.Hosts * c.RanksPerHost }

// hosts returns the ranks of each host, for hierarchical algorithms.
func (c Cluster) hosts() [][]int {
	ranks := make([]int, c.Ranks())
	list := make([][]int, c.Hosts)
	for rank := range ranks {
		ranks[rank] = rank
	}
	for h := range list {
		list[h] = ranks[h*c.RanksPerHost : (h+1)*c.RanksPerHost]
	}
	return list
}

// perByte returns the seconds per byte of a rate in GB/s.
func perByte(gb float64) float64 { return 1 / (gb * 1e9) }

// Cost converts the link to the units in which plans are priced.
func (l Link) Cost() cost.Link {
	return cost.Link{Latency: l.Latency * 1e-6, Byte: perByte(l.Rate), Step: l.Step * 1e-6}
}

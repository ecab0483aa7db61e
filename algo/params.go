package algo

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"sagecomm/algo/cost"
)

// Params holds the costs, in seconds, from which prices are computed.
type Params struct {
	Slots   cost.Memory // shared memory that all ranks of a host see
	Channel cost.Link   // a channel between two ranks of a host, in shared memory
	Network cost.Link   // a channel between two hosts
	Reduce  float64     // per byte of a message that a rank reduces, beyond the link's costs
	Copy    float64     // per byte copied inside a rank
}

// channelOf returns the costs of a channel that lies in shared memory of given costs. A sender copies a message into
// lines that the receiver has read before (Copy and Claim of [cost.Memory]); the receiver's core fetches it (Far) and
// in most collectives reduces it with another operand (two times Reduce). All this work is charged to the link,
// although cores do it: in a play links work beside ranks, while here a core that sends or reduces does nothing else. A
// byte that is passed on without a reduction thus costs a third too much, which favours slots, the choice that
// measurements support. A message takes a step at each end and a hop between.
func channelOf(b cost.Memory) cost.Link {
	return cost.Link{Latency: b.Hop, Byte: b.Copy + b.Claim + b.Far + 2*b.Reduce, Step: b.Step}
}

// DefaultParams returns the costs of [cost.DefaultMemory], and the costs of channels that follow from them.
//
// Network is a connection over 25 Gbit/s Ethernet through the kernel: the line's rate, half of a round trip of 50 us,
// and at each end a system call with its copy. It is a default for planning and was not measured.
func DefaultParams() Params {
	b := cost.DefaultMemory()
	return Params{
		Slots:   b,
		Channel: channelOf(b),
		Network: cost.Link{Latency: 25e-6, Byte: 320e-12, Step: 3e-6},
		Copy:    b.Copy,
	}
}

// Scale holds the costs of another machine as multiples of those of the machine of [DefaultParams].
type Scale struct {
	Hop, Copy, Far, Reduce float64
}

// Scaled returns the parameters with the costs of slots and channels scaled. Steps stay as they are: they are
// the work of software, which depends little on the machine's memory.
func (p Params) Scaled(s Scale) Params {
	b := &p.Slots
	b.Hop *= s.Hop
	b.Copy, b.Store, p.Copy = b.Copy*s.Copy, b.Store*s.Copy, p.Copy*s.Copy
	b.Far, b.Claim = b.Far*s.Far, b.Claim*s.Far
	b.Reduce, p.Reduce = b.Reduce*s.Reduce, p.Reduce*s.Reduce
	p.Channel = channelOf(*b)
	return p
}

// ScaledNetwork returns the parameters with the costs of a message between hosts multiplied.
func (p Params) ScaledNetwork(latency, step, perByte float64) Params {
	p.Network = cost.Link{Latency: p.Network.Latency * latency, Byte: p.Network.Byte * perByte, Step: p.Network.Step * step}
	return p
}

// ByName returns all parameters, in seconds.
func (p Params) ByName() map[string]float64 {
	list := map[string]float64{}
	for _, one := range parameters {
		list[one.name] = *one.in(&p)
	}
	return list
}

// networkPrefix begins the names of the parameters of messages between hosts.
const networkPrefix = "network."

// networkDigits is how many digits of these parameters are written where they are to be the same ones when they are read.
const networkDigits = 7

// networkParameters returns the parameters of messages between hosts.
func networkParameters() []parameter {
	return slices.DeleteFunc(slices.Clone(parameters), func(p parameter) bool { return !strings.HasPrefix(p.name, networkPrefix) })
}

// NetworkSettings returns the costs of a message between hosts in the grammar of [ParseTune], with some digits.
func NetworkSettings(l cost.Link, digits int) string {
	var list []string
	p := Params{Network: l}
	for _, one := range networkParameters() {
		list = append(list, one.name+"="+formatTime(*one.in(&p), digits))
	}
	return strings.Join(list, ";")
}

// KeepNetwork returns a text for [ParseTune] with the costs of a message between hosts in the place of those that it sets.
func KeepNetwork(text string, l cost.Link) string {
	var list []string
	for item := range strings.SplitSeq(text, ";") {
		if item = strings.TrimSpace(item); item != "" && !strings.HasPrefix(item, networkPrefix) {
			list = append(list, item)
		}
	}
	return strings.Join(append(list, NetworkSettings(l, networkDigits)), ";")
}

// SetsNetwork reports whether all costs of a message between hosts are set.
func (t Tune) SetsNetwork() bool {
	return !slices.ContainsFunc(networkParameters(), func(p parameter) bool {
		return !slices.ContainsFunc(t.Settings, func(s Setting) bool { return s.Name == p.name })
	})
}

// Bounds of parameters. They allow for links far slower than any that exist, and they keep sums of femtoseconds within
// 64 bits.
const (
	mostSeconds  = 10e-3 // for hops, steps and latencies
	mostPerByte  = 1e-6
	femtoseconds = 1e15
)

// parameter is one number of [Params] under the name that users give it.
type parameter struct {
	name    string
	earlier string // its name in earlier versions, which settings and files may still have
	perByte bool
	in      func(*Params) *float64
}

// parameters lists all parameters.
var parameters = []parameter{
	{"slots.hop", "board.hop", false, func(p *Params) *float64 { return &p.Slots.Hop }},
	{"slots.flag", "board.flag", false, func(p *Params) *float64 { return &p.Slots.Flag }},
	{"slots.step", "board.step", false, func(p *Params) *float64 { return &p.Slots.Step }},
	{"slots.copy", "board.copy", true, func(p *Params) *float64 { return &p.Slots.Copy }},
	{"slots.far", "board.far", true, func(p *Params) *float64 { return &p.Slots.Far }},
	{"slots.claim", "board.claim", true, func(p *Params) *float64 { return &p.Slots.Claim }},
	{"slots.reduce", "board.fold", true, func(p *Params) *float64 { return &p.Slots.Reduce }},
	{"slots.store", "board.store", true, func(p *Params) *float64 { return &p.Slots.Store }},
	{"channel.latency", "ring.latency", false, func(p *Params) *float64 { return &p.Channel.Latency }},
	{"channel.step", "ring.step", false, func(p *Params) *float64 { return &p.Channel.Step }},
	{"channel.byte", "ring.byte", true, func(p *Params) *float64 { return &p.Channel.Byte }},
	{"network.latency", "", false, func(p *Params) *float64 { return &p.Network.Latency }},
	{"network.step", "", false, func(p *Params) *float64 { return &p.Network.Step }},
	{"network.byte", "", true, func(p *Params) *float64 { return &p.Network.Byte }},
	{"rank.reduce", "", true, func(p *Params) *float64 { return &p.Reduce }},
	{"rank.copy", "", true, func(p *Params) *float64 { return &p.Copy }},
}

// findParameter returns the parameter with a name, which may be its name in earlier versions.
func findParameter(name string) (parameter, error) {
	names := make([]string, len(parameters))
	for i, p := range parameters {
		if name == p.name || name == p.earlier && name != "" {
			return p, nil
		}
		names[i] = p.name
	}
	return parameter{}, fmt.Errorf("unknown parameter %q, there are: %s", name, strings.Join(names, ", "))
}

// check refuses a value that is out of bounds.
func (p parameter) check(seconds float64) error {
	most, what := mostSeconds, "10ms"
	if p.perByte {
		most, what = mostPerByte, "1us a byte"
	}
	if math.IsNaN(seconds) || seconds < 0 || seconds > most {
		return fmt.Errorf("%s of %g seconds: expected 0 to %s", p.name, seconds, what)
	}
	return nil
}

// Validate refuses parameters out of bounds.
func (p Params) Validate() error {
	for _, one := range parameters {
		if err := one.check(*one.in(&p)); err != nil {
			return err
		}
	}
	return nil
}

// whole returns all parameters in whole femtoseconds. Prices are sums of these, so ranks with equal ones predict the
// same.
func (p Params) whole() []int64 {
	list := make([]int64, len(parameters))
	for i, one := range parameters {
		list[i] = int64(math.Round(*one.in(&p) * femtoseconds))
	}
	return list
}

// Setting is a parameter set by a user or a file.
type Setting struct {
	Name    string
	Seconds float64
}

// with returns the parameters with some of them replaced.
func (p Params) with(settings []Setting) (Params, error) {
	for _, s := range settings {
		one, err := findParameter(s.Name)
		if err != nil {
			return p, err
		}
		*one.in(&p) = s.Seconds
	}
	return p, nil
}

// parseSetting reads name=value, where the value is a time such as 250ns or 20ps.
func parseSetting(item string) (Setting, error) {
	name, value, _ := strings.Cut(item, "=")
	one, err := findParameter(strings.TrimSpace(name))
	if err != nil {
		return Setting{}, err
	}
	seconds, err := parseTime(value)
	if err != nil {
		return Setting{}, err
	}
	return Setting{one.name, seconds}, one.check(seconds)
}

// parseTime reads a number with a unit of time.
func parseTime(text string) (float64, error) {
	text = strings.TrimSpace(text)
	for _, unit := range []struct {
		suffix  string
		seconds float64
	}{{"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"ps", 1e-12}, {"s", 1}} {
		if digits, ok := strings.CutSuffix(text, unit.suffix); ok {
			if value, err := strconv.ParseFloat(strings.TrimSpace(digits), 64); err == nil && !math.IsInf(value, 0) {
				return value * unit.seconds, nil
			}
			break
		}
	}
	return 0, fmt.Errorf("time %q: expected a number with ps, ns, us, ms or s, such as 250ns", text)
}

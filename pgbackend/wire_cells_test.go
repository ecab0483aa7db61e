package pgbackend

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"

	"sagecomm/internal/coll"
)

// A wireCell is one fault of a link between two of three hosts, at one moment of one operation of one size.
type wireCell struct {
	op     string
	size   int
	fault  string
	moment string
	tls    bool
}

func (c wireCell) String() string {
	secure := "plain"
	if c.tls {
		secure = "tls"
	}
	return fmt.Sprintf("%s/%d/%s/%s/%s", c.op, c.size, c.fault, c.moment, secure)
}

// random returns the source for what a cell leaves open.
func (c wireCell) random(seed uint64) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, c)
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// outcome is what the ranks must get.
type outcome int

const (
	harmless outcome = iota // all operations succeed
	lost                    // all ranks have one PeerFailure, which names an end of the link
	unheard                 // or one Timeout, which does: what is missing looks like a rank that does not go on
)

// wireFaults are the faults, and what they lead to in a group that is made.
var wireFaults = []struct {
	name string
	outcome
}{
	{"reset", lost},             // in the middle of a frame
	{"truncate", lost},          // EOF there
	{"damaged_header", unheard}, // a length that is too long is noticed when that much has come
	{"damaged_payload", lost},
	{"replay", lost},   // a frame comes twice, within TLS some bytes
	{"hole", unheard},  // what one of the two sends is acknowledged and lost
	{"holes", unheard}, // what both send
	{"drop", lost},     // a cut: the kernel of one end hears nothing of the other one
	{"drops", lost},
	{"stall", harmless},
	{"fragments", harmless},
	// Strangers, while the ranks do their work:
	{"mute", harmless}, // connect and say nothing
	{"garbage", harmless},
	{"half", harmless},     // say a part of the handshake
	{"stranger", harmless}, // have another secret
	{"recorded", harmless}, // repeat what a rank has said
	{"twice", harmless},    // have the secret, and the name of a process that is linked
	{"flood", harmless},    // are more than are kept
}

func isStranger(fault string) bool {
	switch fault {
	case "mute", "garbage", "half", "stranger", "recorded", "twice", "flood":
		return true
	}
	return false
}

var (
	wireMoments = []string{"making", "idle", "running", "leaving"}
	wireSizes   = []int{8, 24 << 10, 300 << 10, 3 << 20} // short; above the direct path; several messages; long ones
)

// probingMoment is a moment of TestWireWhileLinksAreProbed only: other groups do not probe.
const probingMoment = "probing"

const (
	noOperation = "none"
	wireP2P     = "p2p"
	exchangeOp  = "exchange"
)

func wireOps() (list []string) {
	for kind := range coll.KindCount {
		if kind.Collective() {
			list = append(list, kind.String())
		}
	}
	return append(list, wireP2P, exchangeOp, noOperation)
}

// meaningless returns why a combination is left out, "" if it is not.
func (c wireCell) meaningless() string {
	between := c.moment == "making" || c.moment == "leaving"
	sized := c.op != coll.Barrier.String() && c.op != exchangeOp && c.op != noOperation
	waits := strings.HasPrefix(c.fault, "drop") || strings.HasPrefix(c.fault, "hole")
	switch {
	case between != (c.op == noOperation):
		return "operations are made in a group that is there, and not yet destroyed"
	case !sized && c.size != wireSizes[0]:
		return "the operation has no size"
	case c.fault == "damaged_payload" && (c.moment != "running" || c.op == coll.Barrier.String()):
		return "payloads cross in operations"
	case c.fault == "replay" && c.moment != "running":
		return "frames cross in operations; handshakes are repeated by strangers"
	case c.moment == "making" && (c.fault == "twice" || c.fault == "drop" || c.fault == "drops"):
		return "there is no link yet, and a handshake that is cut is one in a hole"
	case waits && c.size != wireSizes[0] && c.size != wireSizes[2]:
		return "it takes seconds, and two sizes have all paths"
	case isStranger(c.fault) && c.size != wireSizes[0] && c.size != wireSizes[2]:
		return "strangers do not see the size"
	}
	return ""
}

// wireCells returns the combinations that are left.
func wireCells() (list []wireCell, left map[string]int) {
	left = map[string]int{}
	for _, op := range wireOps() {
		for _, size := range wireSizes {
			for _, f := range wireFaults {
				for _, moment := range wireMoments {
					for _, tls := range []bool{false, true} {
						c := wireCell{op, size, f.name, moment, tls}
						if why := c.meaningless(); why != "" {
							left[why]++
							continue
						}
						list = append(list, c)
					}
				}
			}
		}
	}
	return list, left
}

// expected returns what a cell must lead to in a group that is made.
func (c wireCell) expected() outcome {
	for _, f := range wireFaults {
		if f.name != c.fault {
			continue
		}
		if c.tls && c.fault == "damaged_payload" { // any byte of a record
			return unheard
		}
		return f.outcome
	}
	panic("no such fault: " + c.fault)
}

// draw draws where a fault that wire makes happens. It is one of the direction from ends[from], and of a connection
// that the operation may use, where links have so many for data.
func (c wireCell) draw(random *rand.Rand, ends [2]int, data int) wireFault {
	f := wireFault{action: c.fault, from: ends[random.IntN(2)], index: -1, part: "byte", mask: 1 << random.IntN(8)}
	switch c.fault {
	case "damaged_header":
		f.action, f.part, f.offset = "damage", "header", random.IntN(64)
	case "damaged_payload":
		f.action, f.part, f.offset = "damage", "payload", random.IntN(max(1, min(c.size, 64<<10)))
	case "replay":
		f.part = "header"
	}
	switch c.moment {
	case "making":
		f.index, f.skip = random.IntN(1+data), random.IntN(85)
		f.part = "byte"
	case probingMoment:
		f.index, f.skip = 1, random.IntN(2000) // from the beginning of the probe; all answers to it are more
	case "running":
		f.skip = random.IntN(64 + min(c.size, 1<<20)/2)
		if c.fault == "damaged_payload" || c.fault == "replay" {
			f.index = anyData
			if c.op == exchangeOp {
				f.index = 0
			}
		}
	}
	return f
}

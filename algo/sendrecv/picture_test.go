package sendrecv

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
)

var update = flag.Bool("update", false, "write testdata/plans.txt anew")

const legend = `Every sendrecv plan for 4 and 5 ranks, root 1, with hosts of 2 ranks where there are 4. Each rank has one line, with its
steps in order. Written by: go test ./algo/sendrecv -run Pictures -update

  I2      block 2 of the input, or piece 2 of each chunk of it where there are no blocks; I is all of it
  O1-3    blocks or pieces 1 to 3 of the output
  S0:2    scratch cell 0, which holds block or piece 2
  >3 I2   send to rank 3
  <3 O2   receive from rank 3
  +3 I2 O2   receive from rank 3, write I2 + message to O2
  3+ I2 O2   receive from rank 3, write message + I2 to O2
  O2 += S0   reduce, O2 = S0   copy
  ~2      two chunks behind the head of the pipeline; #1: on channel 1
`

// picture returns the picture of some regions.
func picture(p plan.SendRecvPlan, regions []plan.Region) string {
	var parts []string
	for i := 0; i < len(regions); i++ {
		r := regions[i]
		first, count := r.First, r.Count
		if !plan.IsFlat(p.Kind) {
			first, count = r.Block, 1
			for ; i+1 < len(regions) && regions[i+1].Space == r.Space && r.Space != plan.Scratch && regions[i+1].Block == first+count; i++ {
				count++
			}
		}
		text := "IOS"[r.Space : r.Space+1]
		if r.Space == plan.Scratch {
			text += fmt.Sprint(r.Cell)
		}
		if p.Pieces > 1 || !plan.IsFlat(p.Kind) {
			if r.Space == plan.Scratch {
				text += ":"
			}
			text += fmt.Sprint(first)
			if count > 1 {
				text += fmt.Sprintf("-%d", first+count-1)
			}
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ",")
}

func pictures(p plan.SendRecvPlan) string {
	var parts []string
	for _, s := range p.Steps {
		from, to := picture(p, s.From), picture(p, s.To)
		text := map[plan.Op]string{
			plan.Send:       fmt.Sprintf(">%d %s", s.Peer, from),
			plan.Recv:       fmt.Sprintf("<%d %s", s.Peer, to),
			plan.RecvReduce: fmt.Sprintf("+%d %s %s", s.Peer, from, to),
			plan.Reduce:     fmt.Sprintf("%s += %s", to, from),
			plan.Copy:       fmt.Sprintf("%s = %s", to, from),
		}[s.Op]
		if s.MessageFirst {
			text = fmt.Sprintf("%d+ %s %s", s.Peer, from, to)
		}
		text = strings.TrimSpace(text)
		if s.Channel > 0 {
			text += fmt.Sprintf(" #%d", s.Channel)
		}
		if s.Lag > 0 {
			text += fmt.Sprintf(" ~%d", s.Lag)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " | ")
}

func TestPicturesShowThePlans(t *testing.T) {
	text := legend
	for _, f := range families {
		text += fmt.Sprintf("\n%v %s\n", f.kind, f.name)
		for _, size := range []int{4, 5} {
			at := Place{Size: size, Root: 1, Chunk: size * plan.Unit}
			if size == 4 {
				at.Hosts = [][]int{{0, 1}, {2, 3}}
			}
			for rank, p := range buildAll(t, f, at) {
				text += fmt.Sprintf("%4d/%d: %s\n", rank, size, pictures(p))
			}
		}
	}
	const name = "testdata/plans.txt"
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	if text != string(want) {
		t.Errorf("%s does not show what builders make: look at the difference that -update makes", name)
	}
}

package host

import (
	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/runner"
)

var _ engine.Carrier = (*Engine)(nil)

// IssueCarrier implements engine.Carrier.
func (e *Engine) IssueCarrier(n int, op coll.Op) error {
	p, err := e.Prepare(runner.CallOf(op), op)
	if err != nil {
		return err
	}
	if err = e.lane.Run.Carry(n, op.Bytes(), p.Program, !p.Kept); err != nil && !p.Kept {
		p.Program.Free()
	}
	return err
}

// Agree implements engine.Carrier.
func (e *Engine) Agree(about coll.Op, proposal int) (runner.Agreement, error) {
	op := runner.AgreementOp
	p, err := e.Prepare(runner.CallOf(op), op)
	if err != nil {
		return runner.Agreement{}, err
	}
	a, err := e.lane.Run.Agree(about, proposal, p.Program, !p.Kept)
	if err != nil && !p.Kept {
		p.Program.Free()
	}
	return a, err
}

package vendor

import (
	"errors"
	"fmt"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

// A method may have SUM, and neither AVG nor PREMUL_SUM. Where the frameworks of all ranks multiply and divide in kernels of their own
// (device.Scaler), AVG is a SUM and a division of the output behind it, and PREMUL_SUM is a product in front of a SUM. The kernels stand in
// the stream of the communicator, between the commands of the operation. Averages of integers stay with the staged engine: they are
// truncated, and kernels that divide integers so are not known to be on all devices, nor to be exact there.

// scaled has the elements that a framework multiplies and divides for a type. A complex number is two floats.
var scaled = map[coll.DataType]coll.DataType{coll.Float16: coll.Float16, coll.BFloat16: coll.BFloat16, coll.Float32: coll.Float32,
	coll.Float64: coll.Float64, coll.Complex64: coll.Float32, coll.Complex128: coll.Float64}

// asSum returns the SUM that carries out an operation beside a scaling, or false if there is none.
func asSum(op coll.Op) (coll.Op, bool) {
	if op.Reduce != coll.Avg && op.Reduce != coll.PremulSum || !op.Kind.Reduces() {
		return op, false
	}
	if _, known := scaled[op.Type]; !known {
		return op, false
	}
	op.Reduce = coll.Sum
	return op, true
}

// Carries reports whether communicators of a method carry out such operations where the frameworks of all ranks multiply
// and divide.
func Carries(m Method, op coll.Op) bool {
	sum, ok := asSum(op)
	return m.Supports(op) || ok && m.Supports(sum)
}

// carries reports whether the communicator carries out such operations. The result is the same on all ranks.
func (c *communicator) carries(op coll.Op) bool {
	return c.engine.method.Supports(op) || c.isScaled(op)
}

// isScaled reports whether the communicator carries out an operation as a SUM beside a scaling.
func (c *communicator) isScaled(op coll.Op) bool {
	sum, ok := asSum(op)
	return ok && c.scales && !c.engine.method.Supports(op) && c.engine.method.Supports(sum)
}

// tellOfHost tells the user, once for each kind of operation, that a reduction goes through host memory although the ranks use the method.
func (c *communicator) tellOfHost(op coll.Op) {
	if !op.Kind.Reduces() || c.engine.told[op.Kind].Swap(true) {
		return
	}
	why := "it has no such reduction"
	switch sum, ok := asSum(op); {
	case ok && c.engine.method.Supports(sum):
		why = "it has no such reduction, and the framework of a rank has no kernels that multiply and divide beside a sum"
	case op.Reduce == coll.Avg && !ok:
		why = "averages of integers are truncated on the host"
	}
	c.engine.group.Info(fmt.Sprintf("%s with %v of %v goes through host memory and not through %s: %s; later ones of this kind are not logged",
		op.Name(), op.Reduce, op.Type, c.engine.method.Name(), why))
}

// scaling is what a framework's kernels do beside the commands of a method.
type scaling struct {
	op     coll.Op       // for the method
	by     device.Scaler // nil: nothing is scaled
	of     coll.DataType // the elements
	factor float64       // of the inputs; 1: they stay as they are
	ranks  float64       // divide the output; 1: it stays as it is
}

// scalingOf returns the scaling of an operation. Requires: carries, and lacksScaler has returned nil.
func (c *communicator) scalingOf(op coll.Op, rt device.Launcher) scaling {
	if !c.isScaled(op) {
		return scaling{op: op}
	}
	s := scaling{by: rt.(device.Scaler), of: scaled[op.Type], factor: 1, ranks: 1}
	s.op, _ = asSum(op)
	switch {
	case op.Reduce == coll.PremulSum:
		s.factor = op.Factor
	case op.Writes(c.engine.group.Rank):
		s.ranks = float64(c.engine.group.Size)
	}
	return s
}

// lacksScaler returns why a call cannot bring the scaling of its operation: the ranks have found out that they have it when they made the
// communicator.
func (c *communicator) lacksScaler(op coll.Op, rt device.Launcher) error {
	if !c.isScaled(op) || scales(rt) {
		return nil
	}
	return errors.New("this call comes from a framework without kernels that multiply and divide (sagecomm_bridge), and the first collective on the device came from one that has them; make calls of one framework on the device, or set SAGECOMM_ENGINE=staged")
}

// scales reports whether the framework of a call has the kernels.
func scales(rt device.Launcher) bool {
	s, ok := rt.(device.Scaler)
	return ok && s.Scales()
}

// before queues what comes in front of the method's commands, and returns the segments of the input that these read.
func (s *scaling) before(stream device.Stream, in []runner.Segment) ([]runner.Segment, error) {
	pieces, bytes := piecesOf(in)
	if s.by == nil || s.factor == 1 || bytes == 0 {
		return in, nil
	}
	at, err := s.by.Multiply(stream, s.of, pieces, s.factor)
	return []runner.Segment{{Data: at, Bytes: bytes}}, err
}

// behind queues what comes behind the method's commands.
func (s *scaling) behind(stream device.Stream, out []runner.Segment) error {
	pieces, bytes := piecesOf(out)
	if s.by == nil || s.ranks == 1 || bytes == 0 {
		return nil
	}
	return s.by.Divide(stream, s.of, pieces, s.ranks)
}

func piecesOf(segments []runner.Segment) (list []device.Piece, bytes uint64) {
	for _, one := range segments {
		if one.Bytes > 0 {
			list = append(list, device.Piece{At: one.Data, Bytes: one.Bytes})
			bytes += one.Bytes
		}
	}
	return list, bytes
}

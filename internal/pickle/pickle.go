// Package pickle writes plain data in the format of Python's pickle module, protocol 2: dictionaries, lists, tuples, strings,
// integers, floats, booleans and None. The analyser of torch's flight recorder reads such files. The package reads no pickles,
// and its output never makes a reader import or call anything.
//
// Any goroutine may call it. Opcodes: Lib/pickletools.py of CPython. Start reading at [Marshal].
package pickle

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
)

// Dict is a dictionary whose items keep their order. As JSON it is an object.
type Dict []Item

// Item is one key with its value.
type Item struct {
	Key   string
	Value any
}

// Tuple is a tuple. As JSON it is a list.
type Tuple []any

// Get returns the value of a key, or nil if the key is missing.
func (d Dict) Get(key string) any {
	for _, item := range d {
		if item.Key == key {
			return item.Value
		}
	}
	return nil
}

// Set changes the value of a key. Requires: the dictionary has the key.
func (d Dict) Set(key string, value any) {
	for i := range d {
		if d[i].Key == key {
			d[i].Value = value
		}
	}
}

// MarshalJSON implements [json.Marshaler].
func (d Dict) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, item := range d {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(item.Key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(item.Value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Marshal returns the pickle of v: nil, bool, int, int64, uint64, float64, string, [Dict], [Tuple], []any, []int,
// []int64, []string, [][]int64 or []Dict.
func Marshal(v any) ([]byte, error) {
	e := encoder{b: []byte{0x80, 2}}
	if err := e.value(v); err != nil {
		return nil, err
	}
	return append(e.b, '.'), nil
}

type encoder struct{ b []byte }

func (e *encoder) value(v any) error {
	switch v := v.(type) {
	case nil:
		e.b = append(e.b, 'N')
	case bool:
		if v {
			e.b = append(e.b, 0x88)
		} else {
			e.b = append(e.b, 0x89)
		}
	case int:
		e.integer(int64(v))
	case int64:
		e.integer(v)
	case uint64:
		if v > math.MaxInt64 {
			return fmt.Errorf("pickle: %d is too large", v)
		}
		e.integer(int64(v))
	case float64:
		e.b = binary.BigEndian.AppendUint64(append(e.b, 'G'), math.Float64bits(v))
	case string:
		e.b = binary.LittleEndian.AppendUint32(append(e.b, 'X'), uint32(len(v)))
		e.b = append(e.b, v...)
	case Dict:
		e.b = append(e.b, '}', '(')
		for _, item := range v {
			if err := e.value(item.Key); err != nil {
				return err
			}
			if err := e.value(item.Value); err != nil {
				return err
			}
		}
		e.b = append(e.b, 'u')
	case Tuple:
		e.b = append(e.b, '(')
		if err := values(e, v); err != nil {
			return err
		}
		e.b = append(e.b, 't')
	case []any:
		return list(e, v)
	case []int:
		return list(e, v)
	case []int64:
		return list(e, v)
	case []string:
		return list(e, v)
	case [][]int64:
		return list(e, v)
	case []Dict:
		return list(e, v)
	default:
		return fmt.Errorf("pickle: a %T is no plain data", v)
	}
	return nil
}

func list[T any](e *encoder, l []T) error {
	e.b = append(e.b, ']', '(')
	if err := values(e, l); err != nil {
		return err
	}
	e.b = append(e.b, 'e')
	return nil
}

func values[T any](e *encoder, l []T) error {
	for _, v := range l {
		if err := e.value(v); err != nil {
			return err
		}
	}
	return nil
}

// integer writes a BININT if 32 bits are enough, else a LONG1 of 8 bytes.
func (e *encoder) integer(n int64) {
	if n >= math.MinInt32 && n <= math.MaxInt32 {
		e.b = binary.LittleEndian.AppendUint32(append(e.b, 'J'), uint32(int32(n)))
		return
	}
	e.b = binary.LittleEndian.AppendUint64(append(e.b, 0x8a, 8), uint64(n))
}

package bootstrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Requests of clients, one frame each. The server answers in order.
//
//	set:   key, value                       one answer
//	get:   timeout of 8 bytes, keys          an answer for each key, in their order, or one that is not answerOK
//	leave: number of ranks of 4 bytes        one answer
//	claim: key, value                       one answer: the value that the key has then
//
// A key is its length, of 2 bytes, and its bytes. An answer is a byte and a value, or a text, or a failure as a rank
// writes it.
const (
	askSet   = 's'
	askGet   = 'g'
	askLeave = 'l'
	askClaim = 'c'

	answerOK      = 'o'
	answerTimeout = 't'
	answerRefused = 'r'
	answerGaveUp  = 'e' // to a set or a get: see Meeting.End
)

// maxServerWait bounds the wait for one request. Clients ask again.
const maxServerWait = 20 * time.Second

// request is a request of a client.
type request struct {
	ask     byte
	keys    []string
	value   []byte
	timeout time.Duration
	ranks   int
}

func appendKey(to []byte, key string) []byte {
	return append(binary.BigEndian.AppendUint16(to, uint16(len(key))), key...)
}

// encode returns the frame of a request, or why there is none.
func (r request) encode() ([]byte, error) {
	for _, k := range r.keys {
		if len(k) > maxKey {
			return nil, fmt.Errorf("a key of %d bytes: at most %d are stored", len(k), maxKey)
		}
	}
	if len(r.value) > maxValue {
		return nil, fmt.Errorf("a value of %d bytes: at most %d are stored", len(r.value), maxValue)
	}
	out := []byte{r.ask}
	switch r.ask {
	case askSet, askClaim:
		return append(appendKey(out, r.keys[0]), r.value...), nil
	case askGet:
		out = binary.BigEndian.AppendUint64(out, uint64(r.timeout))
		for _, k := range r.keys {
			out = appendKey(out, k)
		}
		return out, nil
	default:
		return binary.BigEndian.AppendUint32(out, uint32(r.ranks)), nil
	}
}

var errRequest = errors.New("the request is malformed")

// takeKey reads a key.
func takeKey(from []byte) (key string, rest []byte, err error) {
	if len(from) < 2 {
		return "", nil, errRequest
	}
	n := int(binary.BigEndian.Uint16(from))
	if from = from[2:]; n > maxKey || n > len(from) {
		return "", nil, errRequest
	}
	return string(from[:n]), from[n:], nil
}

// parseRequest accepts what encode returns, and nothing else.
func parseRequest(body []byte) (r request, err error) {
	if len(body) == 0 {
		return r, errRequest
	}
	r.ask, body = body[0], body[1:]
	switch r.ask {
	case askSet, askClaim:
		var key string
		if key, body, err = takeKey(body); err != nil || len(body) > maxValue {
			return r, errRequest
		}
		r.keys, r.value = []string{key}, body
		return r, nil
	case askGet:
		if len(body) < 8 {
			return r, errRequest
		}
		ns := binary.BigEndian.Uint64(body)
		if ns > uint64(maxServerWait) {
			return r, errRequest
		}
		r.timeout = time.Duration(ns)
		for body = body[8:]; len(body) > 0; {
			var key string
			if key, body, err = takeKey(body); err != nil {
				return r, err
			}
			r.keys = append(r.keys, key)
		}
		if len(r.keys) == 0 {
			return r, errRequest
		}
		return r, nil
	case askLeave:
		if len(body) != 4 {
			return r, errRequest
		}
		if r.ranks = int(binary.BigEndian.Uint32(body)); r.ranks == 0 {
			return r, errRequest
		}
		return r, nil
	}
	return r, errRequest
}

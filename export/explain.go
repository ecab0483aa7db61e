// explain.go: which algorithm carries a collective out, and why, and what follows from having measured all of them.
package main

/*
#include "sagecomm.h"
*/
import "C"

import (
	"encoding/json"
	"fmt"

	"sagecomm/pgbackend"
)

//export sagecommExplain
func sagecommExplain(question *C.char, to *C.char, n C.size_t) C.int64_t {
	return answered("explain", question, to, n, pgbackend.Get().Explain)
}

//export sagecommTune
func sagecommTune(measurements *C.char, to *C.char, n C.size_t) C.int64_t {
	return answered("tune", measurements, to, n, pgbackend.Get().Tune)
}

// answered reads a question and writes the answer, both JSON. An error is an answer.
func answered[Q, A any](name string, question *C.char, to *C.char, n C.size_t, answer func(Q) (*A, error)) C.int64_t {
	if question == nil {
		return C.SAGECOMM_INVALID
	}
	return told(to, n, func() ([]byte, error) {
		var q Q
		err := json.Unmarshal([]byte(C.GoString(question)), &q)
		if err != nil {
			err = fmt.Errorf("%s: the question: %w", name, err)
		}
		var a *A
		if err == nil {
			a, err = answer(q)
		}
		if err != nil {
			return json.Marshal(map[string]string{"error": err.Error()})
		}
		return json.Marshal(a)
	})
}

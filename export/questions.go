// questions.go: answers questions about algorithms: which one carries out a collective, how long collectives take on a
// described cluster, which tuning follows from measurements. Questions, answers and errors are JSON.
package main

/*
#include "sagecomm.h"
*/
import "C"

import (
	"encoding/json"
	"fmt"

	"sagecomm/algo/cluster"
	"sagecomm/pgbackend"
)

//export sagecommExplain
func sagecommExplain(question *C.char, to *C.char, n C.size_t) C.int64_t {
	return answerQuestion("explain", question, to, n, pgbackend.Get().Explain)
}

//export sagecommTune
func sagecommTune(measurements *C.char, to *C.char, n C.size_t) C.int64_t {
	return answerQuestion("tune", measurements, to, n, pgbackend.Get().Tune)
}

// sagecommSimulate needs no group and starts no thread.
//
//export sagecommSimulate
func sagecommSimulate(question *C.char, to *C.char, n C.size_t) C.int64_t {
	if question == nil {
		return C.SAGECOMM_INVALID
	}
	return writeText(to, n, func() ([]byte, error) { return cluster.Answer([]byte(C.GoString(question))) })
}

// answerQuestion parses a question and writes the answer into the caller's buffer.
func answerQuestion[Q, A any](name string, question *C.char, to *C.char, n C.size_t, answer func(Q) (*A, error)) C.int64_t {
	if question == nil {
		return C.SAGECOMM_INVALID
	}
	return writeText(to, n, func() ([]byte, error) {
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

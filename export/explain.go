// explain.go: which algorithm carries a collective out, and why.
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
	if question == nil {
		return C.SAGECOMM_INVALID
	}
	return told(to, n, func() ([]byte, error) {
		var q pgbackend.Question
		answer := struct {
			*pgbackend.Explanation
			Error string `json:"error,omitempty"`
		}{}
		err := json.Unmarshal([]byte(C.GoString(question)), &q)
		if err != nil {
			err = fmt.Errorf("explain: the question: %w", err)
		} else {
			answer.Explanation, err = pgbackend.Get().Explain(q)
		}
		if err != nil {
			answer.Error = err.Error()
		}
		return json.Marshal(answer)
	})
}

package main

import (
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/pgbackend"
)

func TestNonsenseFromCIsNoPanic(t *testing.T) {
	if got := sagecommDescribeEnvironment(nil, 1<<20); got <= 0 {
		t.Errorf("%d bytes are needed", got)
	}
	var b byte
	sagecommSink(nil, unsafe.Pointer(&b), 1) // not a handle of this library
}

// A panic in a function that has found its group fails that group.
func TestPanicTakesTheGroupDown(t *testing.T) {
	g, err := pgbackend.Get().Create(pgbackend.Config{Size: 1, Name: "g", Timeout: time.Minute, Store: bootstrap.NewMemStore()})
	require.NoError(t, err)
	defer func() { _ = g.Destroy() }()
	status := sagecommGroupSetTimeout(0, 0, nil) // gives the variable C's type, which tests cannot name
	func() {
		defer guardGroup(g, &status, nil)
		panic("for the test")
	}()
	if coll.Status(status) != coll.Internal {
		t.Errorf("status %d", status)
	}
	if f := g.Cause(); f == nil || f.Status != coll.Internal || !strings.Contains(f.Message, "for the test") {
		t.Errorf("%+v", f)
	}
}

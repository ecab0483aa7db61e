// reports.go: texts about groups and about this host: statistics, metrics, status, topology, configuration variables.
package main

/*
#include "sagecomm.h"
*/
import "C"

import (
	"encoding/json"

	"sagecomm/internal/env"
	"sagecomm/internal/runner"
	"sagecomm/internal/topo"
	"sagecomm/pgbackend"
)

//export sagecommGroupStats
func sagecommGroupStats(group C.sagecomm_group, to *C.char, n C.size_t) (bytes C.int64_t) {
	var status C.int32_t
	defer func() {
		if status != 0 {
			bytes = C.int64_t(status)
		}
	}()
	defer guard(&status, nil)
	g, f := find(group, "group_stats")
	if f != nil {
		return C.SAGECOMM_INVALID
	}
	defer guardGroup(g, &status, nil)
	stats, e := g.Stats()
	if e != nil {
		return C.SAGECOMM_INTERNAL
	}
	text, e := json.Marshal(stats)
	if e != nil {
		return C.SAGECOMM_INTERNAL
	}
	return copyText(text, to, n)
}

//export sagecommMetrics
func sagecommMetrics(to *C.char, n C.size_t) C.int64_t {
	return writeText(to, n, func() ([]byte, error) { return pgbackend.Get().Observers().Metrics(), nil })
}

//export sagecommStatus
func sagecommStatus(to *C.char, n C.size_t) C.int64_t {
	return writeText(to, n, func() ([]byte, error) { return pgbackend.Get().Observers().Status(), nil })
}

// sagecommTopology reads sysfs and procfs, and NVML where there is one. It needs no group.
//
//export sagecommTopology
func sagecommTopology(to *C.char, n C.size_t) C.int64_t {
	return writeText(to, n, func() ([]byte, error) { return json.Marshal(topo.ReadHost(runner.Environ())) })
}

// sagecommDescribeDevices opens the libraries of all vendors, and starts their runtimes.
//
//export sagecommDescribeDevices
func sagecommDescribeDevices(to *C.char, n C.size_t) C.int64_t {
	return writeText(to, n, func() ([]byte, error) { return json.Marshal(pgbackend.DescribeDevices()) })
}

//export sagecommDescribeEnvironment
func sagecommDescribeEnvironment(to *C.char, n C.size_t) C.int64_t {
	return writeText(to, n, func() ([]byte, error) { return env.DescribeJSON(runner.Environ()), nil })
}

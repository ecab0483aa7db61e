package devices

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/device"
)

// refused runs a part of a test in which a device cannot be opened, and compares the reason, which is one line. Where the vendor's
// library finds no device at all, the list of devices gives the same reason.
func refused(t *testing.T, v vendor, libraries string, variables []string, index int, want string, none bool) {
	t.Helper()
	isolated(t, libraries, variables, func(t *testing.T) {
		_, err := v.open(index)
		require.Error(t, err)
		require.True(t, err.Error() == want || strings.HasPrefix(err.Error(), want+": "), "%v, expected %q", err, want)
		require.NotContains(t, err.Error(), "\n")
		_, listed := v.devices()
		if none {
			require.EqualError(t, listed, err.Error())
		} else {
			require.NoError(t, listed)
		}
	})
}

func called(v vendor) string { return strings.ToUpper(v.name[:1]) + v.name[1:] }

func TestWithoutALibrary(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		refused(t, v, "", nil, 0, "no "+called(v)+" runtime: "+v.library+": cannot open shared object file", true)
	})
}

// An older library lacks a function. The reason names it.
func TestWithoutASymbol(t *testing.T) {
	lacking := map[string]string{"ascend": "aclrtValueWait", "cambricon": "cnrtInvokeHostFunc"}
	names := map[string]string{"ascend": "acl", "cambricon": "cnrt"}
	eachVendor(t, func(t *testing.T, v vendor) {
		libraries := t.TempDir()
		if os.Getenv(insideVariable) == "" {
			objects, err := filepath.Glob(filepath.Join(folder(t), "objects", names[v.name], "*.o"))
			require.NoError(t, err)
			require.NotEmpty(t, objects)
			script := filepath.Join(libraries, "exports.map")
			require.NoError(t, os.WriteFile(script, []byte("{ global: *; local: "+lacking[v.name]+"; };\n"), 0o600))
			command := append([]string{"-shared", "-o", filepath.Join(libraries, v.library), "-Wl,--version-script=" + script, "-Wl,-rpath," + folder(t)}, objects...)
			output, err := exec.CommandContext(t.Context(), "g++", append(command, filepath.Join(folder(t), "libemulator.so"))...).CombinedOutput()
			require.NoError(t, err, string(output))
		}
		refused(t, v, libraries, nil, 0, "the "+called(v)+" runtime has no "+lacking[v.name]+": it is too old", true)
	})
}

func TestWithoutDevices(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		refused(t, v, folder(t), []string{"EMULATOR_DEVICES=0"}, 0, "the "+called(v)+" runtime finds no device", true)
	})
}

func TestWithoutThisDevice(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		refused(t, v, folder(t), []string{"EMULATOR_DEVICES=2"}, 2, "no "+called(v)+" device 2: there are 2", false)
	})
}

func TestCountingDevicesFails(t *testing.T) {
	count := map[string]string{"ascend": "aclrtGetDeviceCount", "cambricon": "cnrtGetDeviceCount"}
	eachVendor(t, func(t *testing.T, v vendor) {
		refused(t, v, folder(t), []string{"EMULATOR_FAULTS=" + count[v.name] + "@1+=#100005"}, 0, "the "+called(v)+" runtime finds no device", true)
	})
}

func TestInitialisationFails(t *testing.T) {
	refused(t, vendors[0], folder(t), []string{"EMULATOR_FAULTS=aclInit@1=#500000"}, 0,
		"the Ascend runtime does not start: aclInit: ACL_ERROR_INTERNAL_ERROR (500000)", true)
}

// A framework has started the library before.
func TestInitialisedBySomebodyElse(t *testing.T) {
	isolated(t, folder(t), nil, func(t *testing.T) {
		runtime.LockOSThread()
		p := newProgram(t, vendors[0])
		p.call("aclInit", 0)
		require.Equal(t, 100002, p.Call("aclInit", 0), "the second call")
		_, err := ascendOpen(0)
		require.NoError(t, err)
	})
}

func ascendOpen(index int) (mover, error) { return vendors[0].open(index) }

// Devices before the Atlas A2 have no waits for values and map no memory. They have no runtime.
func TestStreamsThatCannotWait(t *testing.T) {
	for _, call := range []string{"aclrtValueWait", "aclrtValueWrite", "aclrtHostRegister"} {
		t.Run(call, func(t *testing.T) {
			isolated(t, folder(t), []string{"EMULATOR_FAULTS=" + call + "@1+=#207000"}, func(t *testing.T) {
				for range 2 {
					_, err := ascendOpen(0)
					require.ErrorContains(t, err, call+": ACL_ERROR_RT_FEATURE_NOT_SUPPORT (207000)")
				}
			})
		})
	}
}

// A device that maps no host memory is not asked before each operation.
func TestMemoryThatIsNeverMapped(t *testing.T) {
	t.Run("never", func(t *testing.T) {
		fault := "aclrtHostRegister@%d=#207000"
		isolated(t, folder(t), []string{fmt.Sprintf("EMULATOR_FAULTS="+fault+";"+fault+";"+fault, 1, 2, 3)}, func(t *testing.T) {
			for range 5 {
				_, err := ascendOpen(0)
				require.ErrorContains(t, err, "aclrtHostRegister: ACL_ERROR_RT_FEATURE_NOT_SUPPORT")
			}
		})
	})
	t.Run("later", func(t *testing.T) {
		isolated(t, folder(t), []string{"EMULATOR_FAULTS=aclrtHostRegister@1=#207001"}, func(t *testing.T) {
			_, err := ascendOpen(0)
			require.ErrorContains(t, err, "aclrtHostRegister: ACL_ERROR_RT_MEMORY_ALLOCATION")
			_, err = ascendOpen(0)
			require.NoError(t, err)
		})
	})
}

// The documentation of AscendCL does not say that these words may be in host memory. A device on which that does not work may report
// success all the same. It has no runtime, and nothing hangs.
func TestWordsThatAreNotSeen(t *testing.T) {
	for name, c := range map[string]struct{ faults, why string }{
		"no write": {"aclrtValueWrite@1=#0", "a stream did not write a word of host memory"},
		"no store": {"aclrtSynchronizeStreamWithTimeout@2=#107019", "a stream did not see within 2s a word of host memory that this process wrote"},
	} {
		t.Run(name, func(t *testing.T) {
			isolated(t, folder(t), []string{"EMULATOR_FAULTS=" + c.faults}, func(t *testing.T) {
				for range 2 {
					_, err := ascendOpen(0)
					require.EqualError(t, err, c.why)
				}
			})
		})
	}
}

// Each call of a vendor's function that fails is an error of the method, also with a number that this library has no name for, and
// also where a later call succeeds. The thread keeps its device.
func TestEachFailingCallIsAnError(t *testing.T) {
	type method struct {
		call func(b *bed) error
		of   map[string][]string // functions by vendor
	}
	word := func(b *bed) *uint32 { return wordOf(b.pinned, 0) }
	methods := map[string]method{
		"NewStream": {func(b *bed) error { _, err := b.d.NewStream(device.Outputs); return err },
			map[string][]string{"ascend": {"aclrtCreateStreamWithConfig"}, "cambricon": {"cnrtQueueCreate"}}},
		"Pin": {func(b *bed) error { _, err := b.d.Pin(64); return err },
			map[string][]string{"ascend": {"aclrtMallocHost", "aclrtHostRegister"}, "cambricon": {"cnrtHostMalloc"}}},
		"Order": {func(b *bed) error { return b.d.Order(b.caller, b.in) }, map[string][]string{
			"ascend":    {"aclrtSetCurrentContext", "aclrtCreateEventExWithFlag", "aclrtRecordEvent", "aclrtStreamWaitEvent", "aclrtDestroyEvent"},
			"cambricon": {"cnrtGetDevice", "cnrtSetDevice", "cnrtNotifierCreateWithFlags", "cnrtPlaceNotifier", "cnrtQueueWaitNotifier", "cnrtNotifierDestroy"}}},
		"CopyIn": {func(b *bed) error { return b.d.CopyIn(b.in, b.block()) },
			map[string][]string{"ascend": {"aclrtMemcpyAsync"}, "cambricon": {"cnrtMemcpyAsync_V2"}}},
		"CopyOut": {func(b *bed) error { return b.d.CopyOut(b.out, b.block()) },
			map[string][]string{"ascend": {"aclrtMemcpyAsync"}, "cambricon": {"cnrtMemcpyAsync_V2"}}},
		"WriteValue": {func(b *bed) error { return b.d.WriteValue(b.in, word(b), 1) },
			map[string][]string{"ascend": {"aclrtValueWrite"}, "cambricon": {"cnrtInvokeHostFunc"}}},
		"WaitValue": {func(b *bed) error { return b.d.(device.Waiter).WaitValue(b.in, word(b), 0) },
			map[string][]string{"ascend": {"aclrtValueWait"}}},
	}
	const unnamed = 424242
	eachVendor(t, func(t *testing.T, v vendor) {
		isolated(t, folder(t), nil, func(t *testing.T) {
			runtime.LockOSThread()
			b := newBed(t, v)
			for name, m := range methods {
				for _, function := range m.of[v.name] {
					t.Run(name+" "+function, func(t *testing.T) { failing(t, b, m.call, function, unnamed) })
				}
			}
		})
	})
}

// failing calls a method while the next call of a function fails, and again.
func failing(t *testing.T, b *bed, method func(*bed) error, function string, code int) {
	runtime.LockOSThread()
	b.call(b.v.setDevice, 0)
	b.plan(fmt.Sprintf("%s@1=#%d", function, code))
	require.ErrorContains(t, method(b), fmt.Sprintf("%s: error %d of ", function, code))
	require.NoError(t, method(b), "the next call")
	require.Zero(t, b.current(), "the thread's device")
}

package devices

import (
	"runtime"
	"testing"

	"sagecomm/tests/devices/raw"
)

// The libraries of the emulator have the vendors' traps. A test of the runtimes proves little where one is missing.

func (p *program) returns(want int, name string, arguments ...uintptr) {
	p.t.Helper()
	if rc := p.Call(name, arguments...); rc != want {
		p.t.Errorf("%s%v returns %d, expected %d", name, arguments, rc, want)
	}
}

// answers compares what a query writes.
func (p *program) answers(want uintptr, name string, handle uintptr) {
	p.t.Helper()
	out := raw.Memory(8)
	p.call(name, handle, out)
	if got := raw.Load(out); got != want {
		p.t.Errorf("%s says %d, expected %d", name, got, want)
	}
}

func TestTrapsOfAscend(t *testing.T) {
	isolated(t, folder(t), []string{"EMULATOR_POLLS=1000000"}, func(t *testing.T) {
		runtime.LockOSThread()
		p := newProgram(t, vendors[0])
		out := raw.Memory(8)
		p.returns(100001, "aclrtSetDevice", 0)
		p.returns(0, "aclInit", 0)
		p.returns(100002, "aclInit", 0)
		p.returns(107002, "aclrtMalloc", out, 100, 0) // no device is current by itself
		p.returns(107001, "aclrtSetDevice", 2)
		p.call("aclrtSetDevice", 0)
		stream, data, host := p.made("aclrtCreateStream"), p.made("aclrtMalloc", 4096, 0), p.made("aclrtMallocHost", 3*page)
		if host%128 != 64 {
			t.Errorf("host memory at %#x is aligned to more than 64 bytes", host)
		}
		p.returns(107000, "aclrtStreamWaitEvent", stream, p.made("aclrtCreateEventExWithFlag", 8)) // without the flag for waits
		event := p.made("aclrtCreateEventExWithFlag", 1)
		p.answers(1, "aclrtQueryEventStatus", event) // complete, since it was never recorded
		p.call("emulator_hold", stream)
		p.call("aclrtMemcpyAsync", data, 4096, host, 4096, 1, stream)
		p.call("aclrtRecordEvent", event, stream)
		p.answers(0, "aclrtQueryEventStatus", event) // not ready is 0 here and 1 there
		p.answers(1, "aclrtStreamQuery", stream)
		p.returns(107000, "aclrtQueryEventWaitStatus", event, out) // asks about something else
		p.call("emulator_release_stream", stream)
		p.call("aclrtSynchronizeStream", stream)
		p.answers(1, "aclrtQueryEventStatus", event)
		p.answers(0, "aclrtStreamQuery", stream)
		p.returns(207000, "aclrtMemcpyAsync", host, 64, host+1024, 64, 0, stream) // from host to host
		p.returns(100000, "aclrtMemcpyAsync", data, 63, host, 64, 1, stream)      // no room for so many bytes
		p.returns(100034, "aclrtLaunchCallback", host, 0, 0, stream)              // no thread was subscribed
		p.returns(107008, "aclrtHostRegister", host, 64, 0, out)                  // not the start of a page
		aligned := (host + page - 1) / page * page
		mapped := p.mapPage(aligned)
		if mapped == aligned {
			t.Error("a device has the host's address")
		}
		p.returns(107000, "aclrtMemcpyAsync", data, 64, mapped, 64, 1, stream) // a mapped address is for the device only
		p.returns(107000, "aclrtValueWrite", aligned, 1, 0, stream)            // and the host's is not for the device
		p.returns(107000, "aclrtValueWrite", mapped+4, 1, 0, stream)           // words have 64 bits
		p.call("aclrtValueWrite", mapped, 0x500000007, 0, stream)
		p.call("aclrtSynchronizeStream", stream)
		if word := raw.Load(aligned); word != 0x500000007 {
			t.Errorf("the word is %#x", word)
		}
		p.call("aclrtSetDevice", 1)
		p.returns(107003, "aclrtSynchronizeStream", stream) // a stream of another device
	})
}

const page = 4096

// mapPage maps a page of host memory.
func (p *program) mapPage(memory uintptr) uintptr {
	p.t.Helper()
	out := raw.Memory(8)
	p.call("aclrtHostRegister", memory, page, 0, out)
	return raw.Load(out)
}

func TestTrapsOfCambricon(t *testing.T) {
	isolated(t, folder(t), []string{"EMULATOR_POLLS=1000000"}, func(t *testing.T) {
		runtime.LockOSThread()
		p := newProgram(t, vendors[1])
		if now := p.current(); now != 0 {
			t.Errorf("a thread begins with device %d", now)
		}
		p.returns(100005, "cnrtSetDevice", 2)
		queue, data, host := p.made("cnrtQueueCreate"), p.made("cnrtMalloc", 4096), p.made("cnrtHostMalloc", 4096)
		if host%256 == 0 {
			t.Errorf("host memory at %#x is aligned", host)
		}
		notifier := p.made("cnrtNotifierCreateWithFlags", 4)
		p.call("emulator_hold", queue)
		p.call("cnrtMemcpyAsync_V2", data, host, 4096, queue, 0)
		p.call("cnrtPlaceNotifier", notifier, queue)
		p.returns(632014, "cnrtQueryNotifier", notifier) // busy
		p.returns(1, "cnrtQueueQuery", queue)            // and not ready
		p.call("emulator_release_stream", queue)
		p.call("cnrtQueueSync", queue)
		p.returns(0, "cnrtQueryNotifier", notifier)
		p.returns(632013, "cnrtMemcpyAsync_V2", host, host+1024, 64, queue, 3) // from host to host
		p.returns(632013, "cnrtMemcpyAsync_V2", data, host, 64, queue, 6)
		p.returns(100006, "cnrtMemcpyAsync_V2", host, data, 64, queue, 1) // 1 is from device to device
		p.returns(100006, "cnrtQueueWaitNotifier", notifier, queue, 1)
		p.returns(100014, "cnrtPlaceNotifier", queue+1, notifier)
		p.call("cnrtSetDevice", 1)
		p.returns(632006, "cnrtQueueSync", queue)
	})
}

// alone opens a library of collectives beside the runtime of its vendor. Its calls come from the only rank of a communicator.
func (p *program) alone() *program {
	p.t.Helper()
	of := p.v
	of.library = collectives[p.v.name]
	return newProgram(p.t, of)
}

func TestTrapsOfHCCL(t *testing.T) {
	isolated(t, folder(t), nil, func(t *testing.T) {
		runtime.LockOSThread()
		p := newProgram(t, vendors[0])
		c, root, cut, out := p.alone(), raw.Memory(4108), raw.Memory(4108), raw.Memory(8)
		p.Call("aclInit", 0)
		c.returns(15, "HcclGetRootInfo", root) // no device is current
		p.use(0)
		c.call("HcclGetRootInfo", root)
		copy(raw.Bytes(cut, 4107), raw.Bytes(root, 4107))
		c.returns(1, "HcclCommInitRootInfo", 1, cut, 0, out) // the root info has 4108 bytes
		c.call("HcclCommInitRootInfo", 1, root, 0, out)
		comm, stream, data := raw.Load(out), p.made("aclrtCreateStream"), p.made("aclrtMalloc", 4096, 0)
		reduces := func(want int, of, op uintptr) {
			t.Helper()
			c.returns(want, "HcclAllReduce", data, data, 4, of, op, comm, stream)
			c.returns(want, "HcclReduce", data, data, 4, of, op, 0, comm, stream)
			c.returns(want, "HcclReduceScatter", data, data, 4, of, op, comm, stream)
		}
		reduces(0, 4, 0)
		reduces(1, 4, 4)                                              // there is no AVG
		reduces(5, 10, 0)                                             // double is not reduced
		reduces(5, 7, 0)                                              // nor uint8
		reduces(5, 11, 1)                                             // bf16 has no product
		reduces(5, 1, 1)                                              // nor has int16
		reduces(1, 27, 0)                                             // the number of bf16 in aclDataType
		c.returns(2, "HcclReduce", data, 0, 4, 4, 0, 0, comm, stream) // a null pointer
		c.call("HcclAllGather", data, data, 4, 10, comm, stream)      // double is moved
		c.returns(1, "HcclBroadcast", data, 4, 4, 1, comm, stream)    // there is no rank 1
		item := raw.Memory(32)                                        // a send of rank 0 to itself
		copy(raw.Bytes(item+8, 8), raw.Bytes(out, 8))                 // any address
		c.returns(1, "HcclBatchSendRecv", item, 1, comm, stream)
		p.call("aclrtSynchronizeStream", stream)
		c.call("HcclCommDestroy", comm)
	})
}

func TestTrapsOfCNCL(t *testing.T) {
	isolated(t, folder(t), nil, func(t *testing.T) {
		runtime.LockOSThread()
		p := newProgram(t, vendors[1])
		c, id, out, zero, one := p.alone(), raw.Memory(136), raw.Memory(8), raw.Memory(8), raw.Memory(8)
		raw.Bytes(one, 1)[0] = 1
		c.call("cnclGetCliqueId", id)
		c.returns(3, "cnclInitComms", out, 1, one, zero, 1, id) // device 1 is not current
		raw.Bytes(id, 136)[130] ^= 1
		c.returns(7, "cnclInitComms", out, 1, zero, zero, 1, id) // the hash belongs to the id
		raw.Bytes(id, 136)[130] ^= 1
		c.call("cnclInitComms", out, 1, zero, zero, 1, id)
		comm, queue, data := raw.Load(out), p.made("cnrtQueueCreate"), p.made("cnrtMalloc", 4096)
		c.returns(0x71, "cnclInitComms", out, 1, zero, zero, 1, id) // once in a process
		reduces := func(want int, of, op uintptr) {
			t.Helper()
			c.returns(want, "cnclAllReduce", data, data, 4, of, op, comm, queue)
		}
		reduces(0, 0x12, 0)
		reduces(7, 0x12, 4)    // there is no AVG
		reduces(7, 0x13, 0)    // nor a double
		reduces(0x11, 0x33, 0) // uint64 is only moved
		c.call("cnclBroadcast", data, data, 4, 0x33, 0, comm, queue)
		c.returns(0x11, "cnclSend", data, 4, 0x12, 0, comm, queue) // to itself
		c.returns(7, "cnclGroupEnd")
		c.call("cnclGroupStart")
		c.returns(0x11, "cnclAllReduce", data, data, 4, 0x12, 0, comm, queue) // a group is of sends and recvs
		c.call("cnclGroupEnd")
		p.call("cnrtQueueSync", queue)
		c.returns(0, "cnclGetCommAsyncError", comm) // the state, and no pointer
		c.call("emulator_hold", queue)
		reduces(0, 0x12, 0)
		c.returns(6, "cnclGetCommAsyncError", comm) // in progress is no error
		c.call("emulator_release_stream", queue)
		p.call("cnrtQueueSync", queue)
		c.call("cnclFreeComm", comm)
	})
}

package env

import (
	"syscall"
	"time"
)

//go:generate go run ./gendoc ../../docs/environment.md

// Level says which log lines the library writes.
type Level int

// Levels in rising order: a message of level l is printed when l <= the value of [Debug].
const (
	Warn Level = iota
	Info
	Trace
)

// NoDump as the value of [FlightDump] turns dumps off.
const NoDump = "none"

// The variables. To add one, add a declaration here, read it with Get where it takes effect, and run go generate.
// A variable that no code reads has no place here.
var (
	Debug = declare("DEBUG", "WARN", oneOf(choice[Level]{"WARN", Warn}, choice[Level]{"INFO", Info}, choice[Level]{"TRACE", Trace}),
		"How much is written to standard error: warnings only, once per group what was chosen and why, or every operation.")

	DebugFile = declare("DEBUG_FILE", "", text("path"),
		"File to which log lines are appended instead of standard error; %h in it is the host, %p the process, %r the rank in the job.")

	MetricsFile = declare("METRICS_FILE", "", text("path"),
		"File for Prometheus's textfile collector, written anew all the time; %h, %p and %r as in SAGECOMM_DEBUG_FILE.")

	MetricsEvery = declare("METRICS_EVERY", "15", seconds(),
		"How often the file of SAGECOMM_METRICS_FILE is written.")

	TraceFile = declare("TRACE", "", text("path"),
		"File for a Chrome trace of what each thread did, stage by stage, and of each operation; %h, %p and %r as in SAGECOMM_DEBUG_FILE. Costs about a microsecond an operation.")

	Status = declare("STATUS", "on", offOrOn(),
		"Whether `python -m sagecomm status` of the same user may ask this process how its groups are doing, over an abstract Unix socket.")

	Tune = declare("TUNE", "", text("clauses separated by `;`: rules `op:range:algorithm[@key=value]`, `policy=name`, `class.parameter=time`"),
		"Overrides the choice of algorithms, for example `all_reduce:0-8K:one_shot;all_reduce:8K-inf:two_shot@chunk=128K`; must be the same on all ranks. See docs/tuning.md.")

	TuneFile = declare("TUNE_FILE", "", text("path of a file"),
		"File of `python -m sagecomm tune`: parameters and rules that were measured, by machine and group; what SAGECOMM_TUNE says comes before it. Must say the same on all ranks.")

	Probe = declare("PROBE", "on", offOrOn(),
		"Whether the first group of a process measures, for some milliseconds, what memory costs on its machine, if there are two processors for each rank, and the first group over some hosts what the links between them cost; ranks agree on what they found. See docs/tuning.md.")

	Engine = declare("ENGINE", "auto", oneOf(choice[string]{"auto", "auto"}, choice[string]{"nccl", "nccl"}, choice[string]{"hccl", "hccl"},
		choice[string]{"cncl", "cncl"}, choice[string]{"cuda", "cuda"}, choice[string]{"staged", "staged"}),
		"Engine of operations on tensors of devices; `auto` is the best one that all ranks of the group offer. Must be the same on all ranks. See docs/devices.md.")

	BlockingWait = declare("BLOCKING_WAIT", "off", offOrOn(),
		"Whether wait() of an operation on a device, and each synchronous call, wait on the host until the operation is complete or has failed, and raise its failure, as with TORCH_NCCL_BLOCKING_WAIT. See docs/devices.md.")

	Fusion = declare("FUSION", "off", oneOf(choice[bool]{"off", false}, choice[bool]{"static", true}),
		"Whether short all_reduces that are under way at the same time share collectives, without a change of the program; must be the same on all ranks. See docs/fusion.md.")

	ShmAttach = declare("SHM_ATTACH", "proc,scm,tmpfs", listOf("proc", "scm", "tmpfs"),
		"Ways to map a peer's shared memory, in the order in which they are tried: through /proc, by descriptor passing, by a file that is removed once it is mapped.")

	ShmDir = declare("SHM_DIR", "/dev/shm", absolutePath(),
		"Directory of the file that the `tmpfs` way of SAGECOMM_SHM_ATTACH needs; it should be on a memory file system.")

	ArenaSize = declare("ARENA_SIZE", "1G", byteSize(16<<20, 1<<40),
		"Address space of one process's shared memory; pages are taken from the system only as groups need them.")

	Timeout = declare("TIMEOUT", "group", orWord("group", seconds()),
		"How long a rendezvous or an operation may take; `group` is the timeout that the group was created with.")

	Spin = declare("SPIN", "auto", orWord("auto", microseconds()),
		"How long a waiting rank spins before it yields its core; `auto` goes by the number of cores per rank.")

	ProgressCPU = declare("PROGRESS_CPU", "auto", orWord("auto", cpuList()),
		"Cores that the progress thread may use; `auto` leaves that to the system.")

	Kernels = declare("KERNELS", "auto", oneOf(choice[string]{"auto", "auto"}, choice[string]{"avx2", "avx2"},
		choice[string]{"avx512", "avx512"}, choice[string]{"portable", "portable"}),
		"Instruction set of the copy and reduction kernels; `auto` is the best one that the processor has.")

	// Launcher is read by the Python package (sagecomm.launchers) when torch is imported, before there is a group.
	Launcher = declare("LAUNCHER", "off", oneOf(choice[string]{"off", "off"}, choice[string]{"auto", "auto"}, choice[string]{"openmpi", "openmpi"},
		choice[string]{"mvapich2", "mvapich2"}, choice[string]{"hydra", "hydra"}, choice[string]{"slurm", "slurm"}),
		"Whose variables fill in those of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT that are not set, where srun or mpirun starts the ranks; `auto` is the launcher that has started the process, if it is one of these. torch's `env://` reads them when a group is made, so it is no setting of one group. See docs/hosts.md.")

	HostID = declare("HOSTID", "", text("text"),
		"Name of the host that this process belongs to; ranks with different ones share no memory, and exchange data over TCP, also where they are on one machine. Ranks on different machines are on different hosts in any case. See docs/hosts.md.")

	SocketIfname = declare("SOCKET_IFNAME", "auto", interfaces(),
		"Network interface of links to other hosts and of the store of unique ids, in NCCL's syntax; `auto` is the one that leads to MASTER_ADDR, otherwise the one that leads to the process that made the unique id at which this one joins, for links between machines otherwise the first one that joins machines, and loopback elsewhere. See docs/hosts.md.")

	PortRange = declare("PORT_RANGE", "auto", ports(),
		"Ports of which links to other hosts, and the store of unique ids, take the first free one each; `auto` leaves the choice to the system.")

	Advertise = declare("ADVERTISE", "auto", advertised(),
		"Address, and port, by which other processes reach this one where that is not where it listens: behind a port that a container or a router passes on. Without a port it is that of the process, which SAGECOMM_PORT_RANGE chooses. `auto` is where it listens. See docs/hosts.md.")

	DataConnections = declare("DATA_CONNECTIONS", "1", countWithin(1, 8),
		"How many connections of each link to another process carry data, beside the one for control; the channels of an algorithm and the groups of a job are spread over them. More may be faster where a network limits each connection. Must be the same on all ranks. See docs/hosts.md.")

	LinkTimeout = declare("LINK_TIMEOUT", "1.5", secondsWithin(time.Second, time.Minute),
		"How long the host at the other end of a link may acknowledge nothing of what was sent, until the link is lost and its group fails: 2 s more than a network that is repaired by itself is silent, and on kernels before Linux 6.15 twice as long and a second. Must be the same on all ranks. See docs/hosts.md.")

	SecretFile = declare("SECRET_FILE", "", text("path of a file"),
		"File with a secret of the job, of 16 bytes or more, without which nobody makes a link or opens the store of a unique id; the same on all ranks.")

	Secret = hidden(declare("SECRET", "", text("text"),
		"The secret of SAGECOMM_SECRET_FILE itself, where no file can be given; one of the two is set at most. Processes of the same user, and whoever may look into the settings of containers, can read variables of a process, and processes that a rank starts inherit it, and so do their logs of the environment: prefer the file."))

	TLSCertificate = declare("TLS_CERTIFICATE", "", text("path of a file"),
		"File in PEM with the certificate of this host or process, with which links to other hosts are encrypted with TLS 1.3, and intermediate certificates behind it. It is set on all ranks or on none, together with SAGECOMM_TLS_KEY and SAGECOMM_TLS_AUTHORITIES. See docs/hosts.md.")

	TLSKey = declare("TLS_KEY", "", text("path of a file"),
		"File in PEM with the private key of SAGECOMM_TLS_CERTIFICATE.")

	TLSAuthorities = declare("TLS_AUTHORITIES", "", text("path of a file"),
		"File in PEM with the certificates of the authorities that may issue the certificates of the other processes.")

	Checksums = declare("CHECKSUMS", "auto", oneOf(choice[string]{"auto", "auto"}, choice[string]{"always", "always"}, choice[string]{"never", "never"}),
		"Whether data that cross between hosts have checksums: `auto` leaves them out over the loopback of one machine, whose TCP has none there either, and `never` between machines too, if all ranks say so. Frames always have one of their headers. It means nothing with TLS, which authenticates everything.")

	FlightDump = declare("FR_DUMP", "auto", orWord("auto", text("prefix of a path, or none")),
		"Where a failure is dumped for torch's flight recorder analyser: the rank's number in the job is added to the prefix; `none` writes nothing, `auto` goes by TORCH_FR_DUMP_TEMP_FILE and TORCH_FR_DUMP_ON_TIMEOUT.")

	FlightStacks = declare("FR_STACKS", "off", offOrOn(),
		"Whether the flight recorder keeps which lines of Python called each operation, at about three microseconds each.")

	FlightSignal = declare("FR_SIGNAL", "none", oneOf(choice[syscall.Signal]{"none", 0}, choice[syscall.Signal]{"HUP", syscall.SIGHUP},
		choice[syscall.Signal]{"USR1", syscall.SIGUSR1}, choice[syscall.Signal]{"USR2", syscall.SIGUSR2}),
		"Signal at which a process dumps its flight recorder to where failures are dumped; handlers of the process's own for it are not called any more.")

	FlightPrefix = declare("FR_PREFIX", "c10d", text("name"),
		"Library part of operation names, as in `c10d:all_reduce`, in dumps of torch's flight recorder; its analyser warns of each operation of a library that it does not know, and that of some older torch takes `xccl` only.")

	// Serving is read by the Python package (sagecomm.serving) when an engine starts, before there is a group.
	Serving = declare("SERVING", "off", offOrOn(),
		"Whether vLLM, LMDeploy and SGLang put their groups on sagecomm, in every process that inherits it; an engine reads it when it starts, so it is no setting of one group. See docs/vllm.md and docs/lmdeploy.md.")
)

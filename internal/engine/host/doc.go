// Package host is the engine for host memory, as opposed to that of a device: it finds or makes the program of each call and
// submits it to the runner. [Compile] turns slot plans into programs, [CompileSendRecv] sendrecv plans. It decides which
// local variant of a stage a rank uses; peers see nothing of these decisions. Start reading at [Engine].
package host

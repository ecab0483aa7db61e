// Package host turns plans into programs of the runner: slot plans with [Compile], sendrecv plans with
// [CompileSendRecv]. It decides which local variant of a stage a rank uses; peers see nothing of these decisions. Both
// functions are pure and any goroutine may call them.
package host

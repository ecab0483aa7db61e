// Package verify proves plans: it carries out the plans of all ranks of a group on symbolic memory and shows that every
// rank ends with what its collective promises, in place and out of place, without a deadlock under any interleaving.
// [CheckSlots] and [CheckSlotCalls] prove slot plans, [CheckSendRecv] and [CheckSendRecvCall] prove sendrecv plans;
// their comments give the argument why a few runs decide about all interleavings.
//
// The package is for tests. It builds no plan and knows no algorithm. All functions are pure, and any goroutine may call
// them. Start reading at slot_check.go and sendrecv_check.go.
package verify

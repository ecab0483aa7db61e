package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"sagecomm/internal/handshake"
)

// Identity is the name of a process among those of a job, drawn at random.
type Identity [16]byte

// linkProtocol is the handshake of a connection of a link.
var linkProtocol = handshake.Protocol{Magic: "sagelnk1", Label: "sagecomm link", Limit: introductionBytes}

// Version is that of section 16 of docs/protocol.md.
const Version = 7

// introduction says, behind the handshake, which connection this is.
type introduction struct {
	from, to Identity
	attempt  uint64 // all connections of a link have the same; those of later attempts of a process have higher ones
	index    uint8  // of the connection
	data     uint8  // number of data connections

	checksums Checksums // as the dialing process has it set
	machine   Machine   // of that process
	here      endpoint  // the ends of the connection, as that process sees them
	there     endpoint
}

// endpoint is an address, where the one of IPv4 is mapped, and a port.
type endpoint [16 + 2]byte

func endpointOf(a netip.AddrPort) (e endpoint) {
	address := a.Addr().As16()
	copy(e[:], address[:])
	binary.LittleEndian.PutUint16(e[16:], a.Port())
	return e
}

const introductionBytes = 1 + 16 + 16 + 8 + 1 + 1 + 1 + 16 + 2*18

// MaxData bounds the data connections of a link.
const MaxData = 16

func (i introduction) encode() []byte {
	out := append(append([]byte{Version}, i.from[:]...), i.to[:]...)
	out = append(binary.LittleEndian.AppendUint64(out, i.attempt), i.index, i.data, byte(i.checksums))
	return append(append(append(out, i.machine[:]...), i.here[:]...), i.there[:]...)
}

var errIntroduction = errors.New("it does not say which connection it is")

func parseIntroduction(from []byte) (i introduction, err error) {
	if len(from) != introductionBytes {
		return i, errIntroduction
	}
	if from[0] != Version {
		return i, fmt.Errorf("it speaks version %d of the protocol between hosts, and this process version %d", from[0], Version)
	}
	copy(i.from[:], from[1:])
	copy(i.to[:], from[17:])
	i.attempt, i.index, i.data, i.checksums = binary.LittleEndian.Uint64(from[33:]), from[41], from[42], Checksums(from[43])
	copy(i.machine[:], from[44:])
	copy(i.here[:], from[60:])
	copy(i.there[:], from[78:])
	if i.data == 0 || i.data > MaxData || i.index > i.data || i.checksums > ChecksumsNever {
		return i, errIntroduction
	}
	return i, nil
}

// Answers to an introduction.
const (
	admitted     byte = 'a' // payloads have checksums
	admittedBare byte = 'b' // they have none
	crossed      byte = 'c' // this process is dialing, and its connections are the ones that are kept
	notWanted    byte = 'n' // a later attempt has come, the connection is there, or this process has closed its links
	otherSetup   byte = 's' // the processes have other numbers of data connections
	otherProcess byte = 'o' // the introduction is for another process
	lostBefore   byte = 'l' // there is, or was, a link already
)

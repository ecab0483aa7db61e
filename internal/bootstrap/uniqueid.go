package bootstrap

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sagecomm/internal/handshake"
)

// IDBytes is the size of a unique id, that of ncclUniqueId.
const IDBytes = 128

// maxAddresses is the number of addresses that an id has room for.
const maxAddresses = 3

const (
	spaceBytes  = handshake.SpaceBytes
	secretBytes = 32
	homeBytes   = 8
)

// ID is a unique id: where a [Server] listens, which of its key spaces belongs to the id, and the secret that opens it.
// The address is the only part that may become known to others.
type ID struct {
	Space     [spaceBytes]byte // the name of the key space, which is sent in clear
	Secret    [secretBytes]byte
	Addresses []netip.Addr // of the server, most preferred first
	Port      uint16
	Home      [homeBytes]byte // names the machine and the network namespace of the server; zero: they are not known
}

// The layout of an encoded id. Numbers are big-endian; bytes that are not listed are zero.
const (
	idMagic       = "sagecomm" // at 0
	idVersion     = 2          // at 8
	idCountAt     = 9          // number of addresses
	idPortAt      = 10
	idSpaceAt     = 16
	idSecretAt    = idSpaceAt + spaceBytes
	idAddressesAt = idSecretAt + secretBytes // 16 bytes each, IPv4 as in RFC 4291, 2.5.5.2
	idHomeAt      = idAddressesAt + 16*maxAddresses
	idSumAt       = IDBytes - idSumBytes
	idSumBytes    = 8 // of the SHA-256 of what is in front of them
)

// newID returns an id of a server with a key space and a secret that nobody has had before.
func newID(addresses []netip.Addr, port uint16) ID {
	id := ID{Addresses: addresses, Port: port}
	_, _ = rand.Read(id.Space[:]) // never fails: it ends the process instead
	_, _ = rand.Read(id.Secret[:])
	return id
}

// Encode returns the id as callers pass it around.
func (id ID) Encode() (out [IDBytes]byte) {
	copy(out[:], idMagic)
	out[len(idMagic)] = idVersion
	out[idCountAt] = byte(len(id.Addresses))
	binary.BigEndian.PutUint16(out[idPortAt:], id.Port)
	copy(out[idSpaceAt:], id.Space[:])
	copy(out[idSecretAt:], id.Secret[:])
	for i, a := range id.Addresses {
		b := a.As16()
		copy(out[idAddressesAt+16*i:], b[:])
	}
	copy(out[idHomeAt:idSumAt], id.Home[:])
	sum := sha256.Sum256(out[:idSumAt])
	copy(out[idSumAt:], sum[:])
	return out
}

// Why a text is no id.
var (
	errIDMagic    = errors.New("sagecomm: this is no unique id of sagecomm: it was made by another library, or not by unique_id()")
	errIDVersion  = errors.New("sagecomm: the unique id was made by another version of sagecomm: use one version on all ranks")
	errIDChecksum = errors.New("sagecomm: the unique id was damaged on its way: pass all of its 128 bytes to every rank unchanged")
)

// ParseID is strict: it accepts what Encode returns for a valid id, and nothing else.
func ParseID(text []byte) (id ID, err error) {
	sum := [sha256.Size]byte{}
	if len(text) == IDBytes {
		sum = sha256.Sum256(text[:idSumAt])
	}
	switch {
	case len(text) != IDBytes || !bytes.HasPrefix(text, []byte(idMagic)):
		return id, errIDMagic
	case text[len(idMagic)] != idVersion:
		return id, errIDVersion
	case !hmac.Equal(sum[:idSumBytes], text[idSumAt:]):
		return id, errIDChecksum
	}
	count := int(text[idCountAt])
	id.Port = binary.BigEndian.Uint16(text[idPortAt:])
	copy(id.Space[:], text[idSpaceAt:])
	copy(id.Secret[:], text[idSecretAt:])
	copy(id.Home[:], text[idHomeAt:])
	for i := range min(count, maxAddresses) {
		a := netip.AddrFrom16([16]byte(text[idAddressesAt+16*i:])).Unmap()
		if !usable(a) {
			return ID{}, fmt.Errorf("sagecomm: the unique id has the address %v, at which no server can be", a)
		}
		id.Addresses = append(id.Addresses, a)
	}
	if again := id.Encode(); count == 0 || count > maxAddresses || id.Port == 0 || !bytes.Equal(again[:], text) {
		return ID{}, errIDChecksum
	}
	return id, nil
}

// CanServe reports whether an id can have these addresses and this port of a server.
func CanServe(addresses []netip.Addr, port uint16) bool {
	unusable := func(a netip.Addr) bool { return !usable(a) }
	return len(addresses) > 0 && len(addresses) <= maxAddresses && port > 0 && !slices.ContainsFunc(addresses, unusable)
}

// usable reports whether a server can listen at an address that means the same to all processes of a host.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLinkLocalUnicast() && a.Zone() == "" && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// Derive returns an id whose key space and secret follow from those of id and from a text, for a server of another
// process. Whoever has id can derive it, and nobody else.
func (id ID) Derive(text string, addresses []netip.Addr, port uint16) ID {
	d := ID{Addresses: addresses, Port: port}
	space := handshake.MAC(id.Secret[:], "sagecomm store, derived key space", []byte(text))
	copy(d.Space[:], space[:])
	d.Secret = handshake.MAC(id.Secret[:], "sagecomm store, derived secret", []byte(text))
	return d
}

// LinkSecret returns the secret of the links between the processes of a group that has met at the id, of which number is
// the group's in frames.
func (id ID) LinkSecret(number uint64) [sha256.Size]byte {
	return handshake.MAC(id.Secret[:], "sagecomm links, secret of a unique id", binary.BigEndian.AppendUint64(nil, number))
}

// key returns the key of the handshake. It depends on the secret of the job too, if there is one.
func (id ID) key(job []byte) [sha256.Size]byte {
	k := handshake.MAC(id.Secret[:], "sagecomm store, key", id.Space[:])
	if job != nil {
		k = handshake.MAC(k[:], "sagecomm store, secret of the job", job)
	}
	return k
}

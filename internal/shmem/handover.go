package shmem

import (
	"context"
	"crypto/rand"
)

// Handover gives a descriptor of a file that is no arena to other processes, over an abstract socket. Opening it through /proc would open
// the file again, and a file of a driver's is another object then.
type Handover struct {
	server *server
	offer  Offer
}

// Offer names the file of a Handover for processes of the same user and network namespace. Whoever has it can get the file.
type Offer struct {
	Socket string `json:"socket"`
	Token  Nonce  `json:"token"`
}

// HandOver begins to give a descriptor to processes that have the offer. The descriptor stays open until Close has returned.
func HandOver(fd int) (*Handover, error) {
	h := &Handover{}
	rand.Read(h.offer.Token[:])
	var err error
	if h.server, err = serve(fd, h.offer.Token); err != nil {
		return nil, advise(err)
	}
	h.offer.Socket = h.server.name
	return h, nil
}

// Offer returns what other processes need.
func (h *Handover) Offer() Offer { return h.offer }

// Close ends the handover.
func (h *Handover) Close() { h.server.stop() }

// Take returns a descriptor of the file that another process, or this one, hands over. The caller closes it.
func Take(ctx context.Context, o Offer) (fd int, err error) {
	return receive(ctx, &Descriptor{Socket: o.Socket, Token: o.Token})
}

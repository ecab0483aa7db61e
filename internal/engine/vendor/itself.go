package vendor

// ToItself calls copy for what a rank sends to itself, among sends and recvs that fit together. Libraries need not carry that out.
func ToItself(calls []Call, rank int, copy func(to, from uintptr, bytes uint64) error) error {
	var sends []Call
	for _, one := range calls {
		if one.Kind == Send && one.Peer == rank {
			sends = append(sends, one)
		}
	}
	for _, one := range calls {
		if one.Kind != Recv || one.Peer != rank {
			continue
		}
		if sends[0].From != one.To {
			if err := copy(one.To, sends[0].From, one.Count*one.Bytes); err != nil {
				return err
			}
		}
		sends = sends[1:]
	}
	return nil
}

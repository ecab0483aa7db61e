package coll

// Failure is the first cause for which a group failed, as every survivor reports it: sagecomm_error.
type Failure struct {
	Status   Status `json:"status"`
	Rank     int    `json:"rank"`     // the culprit, -1 if there is none
	PID      int    `json:"pid"`      // its process, 0 if unknown
	Sequence uint64 `json:"sequence"` // number of the collective, 0 if none was in flight
	Op       string `json:"op"`       // "all_reduce"
	Group    string `json:"group"`
	Host     string `json:"host"` // host of Rank
	Message  string `json:"message"`
}

func (f *Failure) Error() string { return f.Message }

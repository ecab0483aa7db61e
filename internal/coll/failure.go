package coll

// Failure is the failure of a call or a group, sagecomm_error in C. All survivors report the same first cause for a group.
type Failure struct {
	Status   Status `json:"status"`
	Rank     int    `json:"rank"`                // the culprit, -1 if there is none
	PID      int    `json:"pid"`                 // its process, 0 if unknown
	Sequence uint64 `json:"sequence"`            // number of the collective in its lane, 0 if none was in flight
	OnDevice bool   `json:"on_device,omitempty"` // the operation is one of the device lane
	Op       string `json:"op"`                  // "all_reduce"
	Group    string `json:"group"`
	Host     string `json:"host"` // host of Rank
	Message  string `json:"message"`

	Shrink uint64 `json:"shrink,omitempty"` // which shrink of the group has aborted it, 0: none
}

func (f *Failure) Error() string { return f.Message }

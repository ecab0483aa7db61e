package pgbackend

import "sagecomm/internal/device/vendors"

// DeviceReport is what this process has of a vendor.
type DeviceReport struct {
	vendors.Found
	Engine     string `json:"engine"`               // by the vendor's library of collectives
	WithoutWhy string `json:"engine_why,omitempty"` // in one line why this process does not offer the engine
	Own        string `json:"own,omitempty"`        // engine that needs no such library, and takes several ranks on a device
}

// DescribeDevices looks for the devices and the libraries of all vendors. It opens the libraries, and starts the
// runtimes.
func DescribeDevices() (list []DeviceReport) {
	for _, found := range vendors.Find() {
		r := DeviceReport{Found: found}
		for name, e := range deviceEngines {
			switch {
			case e.vendor != found.Name:
			case e.library:
				r.Engine = name
				if err := e.absent(nil); err != nil {
					r.WithoutWhy = err.Error()
				}
			case found.Why == "":
				r.Own = name
			}
		}
		list = append(list, r)
	}
	return list
}

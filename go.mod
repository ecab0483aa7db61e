module sagecomm

go 1.26.0

require golang.org/x/sys v0.49.0

require github.com/NVIDIA/go-nvml v0.13.0-1

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	gorgonia.org/cu v0.9.6 // indirect
)

// Package algo chooses how a collective is carried out: with which algorithm and which chunk, for each range of
// lengths. It returns classes and plans and explains its choices; it moves no data and measures nothing.
//
// The candidates are plans, that is, collectives as data. Each package below has one job: plan defines what a plan is,
// shmplan and sendrecv build plans, verify proves them, cost prices them, and cluster predicts collectives on clusters
// that are only described.
//
// A [Selector] predicts a table of classes for each kind (predict.go) from costs (params.go) and the shape of the group
// (shape.go). A policy may replace the prediction by fixed rules (policy.go), and the user's rules, from SAGECOMM_TUNE
// (tune.go) or from a tuning file (file.go), override both. [Selector.Tuned] turns measurements into an entry of a
// tuning file (measured.go, fit.go).
//
// The package has no I/O, no clock and no cgo. It imports only the vocabulary package and the packages below. Any
// number of goroutines may use one Selector, and all other functions are pure. Start reading at [Selector].
package algo

// Package algo chooses how a collective is carried out: with which algorithm and which chunk, for each range of
// lengths. It answers with classes and plans and explains its choices; it moves no data and measures nothing.
//
// The candidates are plans, that is, collectives as data. The packages below have one job each: plan says what a plan
// is, shmplan and sendrecv build plans, verify proves them, cost prices them, and cluster predicts collectives on
// clusters that are only described.
//
// A [Selector] predicts a table of classes for each kind (predict.go) from costs (params.go) and the shape of the group
// (shape.go). A policy may replace the prediction by fixed rules (policy.go), and a user's rules come on top, from
// SAGECOMM_TUNE (tune.go) or from a tuning file (file.go). [Selector.Tuned] makes the entry of a tuning file from
// measurements (measured.go, fit.go).
//
// The package has no I/O, no clock and no cgo, and imports the vocabulary package and the packages below only. A
// Selector serves any number of goroutines; all other functions are pure. Start reading at [Selector].
package algo

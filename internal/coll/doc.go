// Package coll is the vocabulary that all other packages share: kinds of operations, element types, reductions, the
// description of one call, and status codes. The numbers are those of export/sagecomm.h (a test compares them), the
// names are torch's. The package imports no other package of sagecomm and holds no state.
//
// Start reading at [Op].
package coll

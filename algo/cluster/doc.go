// Package cluster predicts collectives on clusters that are only described: how long each sendrecv algorithm takes on a
// number of hosts and links. It needs no machine, no group and no network. Start reading at [Cluster], then
// [Cluster.Predict]; [Answer] does both for questions in JSON. All functions are pure and any goroutine may call them.
//
// There are two methods of prediction, and tests hold them against each other. Up to [MostPlayed] ranks the plans
// themselves are played (play.go), which uses no formula. Above, closed forms (formula*.go) state what the literature
// says about each algorithm, extended to two classes of links and to links that many ranks share; they use no plan.
// Where no closed form of the literature holds there is no prediction, and the answer gives the reason.
//
// # What is modelled
//
// The model has latency, bytes and the time for which a rank is busy with each message, for links inside hosts and for
// links between them; reducing and copying; and bounded channels. Ranks of a host that share a NIC wait for each other
// in both directions, and so do hosts behind a switch whose links to other switches carry less than its hosts can send.
// The first message to come is served first.
//
// # What is not
//
// The model leaves out links inside a host that ranks share (the memory of the host, its PCIe switches), several paths
// between two switches and their hashing, lost and repeated packets, congestion control, links that fail, computation at
// the same time, and noise. A prediction is what the machine could do, not what one run takes. Messages may have any
// length: how a transport divides long ones is left to the transport.
package cluster

// Package simulate predicts collectives on clusters that are only described: how long each algorithm of package message
// takes on so many hosts and links. Like message it is data and arithmetic only. Start reading at [Cluster], then
// [Cluster.Predict]; [Answer] does both for text.
//
// There are two ways to a prediction, which tests hold against each other. Up to [MostPlayed] ranks the plans
// themselves are played (play.go): it knows no formula. Above, closed forms (formula*.go) say what the literature says
// of each algorithm, extended to two classes of links and to links that many ranks share; they know no plan. Where the
// literature has none that fits, there is no prediction, and the reason instead.
//
// # What is modelled
//
// Latency, bytes and the time that a rank is busy with each message, for the links inside hosts and those between them;
// reducing and copying; bounded channels. Ranks of a host that share a NIC wait for each other in both directions,
// and so do hosts behind a switch whose links to other switches carry less than its hosts can send. Who is there first
// is served first.
//
// # What is not
//
// Links inside a host that ranks share (the memory of the host, its PCIe switches), several paths between two switches
// and what hashing makes of them, lost and repeated packets, congestion control, links that fail, computation that goes
// on meanwhile, noise: a prediction is what the machine could do, not what one run takes. Messages may be of any
// length: how a transport takes long ones apart is its matter.
package cluster

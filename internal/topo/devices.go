package topo

import (
	"fmt"
	"strconv"
	"strings"
)

// vendors maps PCI vendor ids to makers of accelerators, from pci.ids (version 2026.08.22, pci-ids.ucw.cz).
var vendors = map[uint16]string{
	0x1002: "AMD",
	0x10de: "NVIDIA",
	0x19e5: "Huawei",
	0x8086: "Intel",
	0xcabc: "Cambricon",
}

const (
	pciDevices = "sys/bus/pci/devices"
	netClass   = "sys/class/net"
	rdmaClass  = "sys/class/infiniband"
)

// classKind returns the name of a class of devices that may take part in collectives, or "" for any other class. Class and
// subclass are the upper two of the three bytes.
func classKind(class uint64) string {
	switch class >> 8 {
	case 0x0300:
		return "VGA controller"
	case 0x0302:
		return "3D controller"
	}
	switch class >> 16 {
	case 0x03:
		return "display controller"
	case 0x12:
		return "processing accelerator"
	}
	return ""
}

// hex reads a number like "0x10de".
func hex(text string, bits int) (uint64, bool) {
	digits, ok := strings.CutPrefix(text, "0x")
	n, err := strconv.ParseUint(digits, 16, bits)
	return n, ok && err == nil
}

func (t tree) accelerators() (devices []PCIDevice) {
	for _, address := range t.names(pciDevices) {
		if !pciAddress.MatchString(address) {
			continue
		}
		dir := pciDevices + "/" + address + "/"
		class, hasClass := hex(t.text(dir+"class"), 24)
		vendor, hasVendor := hex(t.text(dir+"vendor"), 16)
		if !hasClass || !hasVendor || classKind(class) == "" {
			continue
		}
		d := PCIDevice{
			Address:    address,
			Kind:       classKind(class),
			Vendor:     fmt.Sprintf("0x%04x", vendor),
			VendorName: vendors[uint16(vendor)],
			Driver:     t.link(dir + "driver"),
			Node:       t.nodeOf(address),
			CPUs:       t.cpus(dir + "local_cpulist"),
			PCI:        transferRate(t.text(dir+"max_link_speed"), t.positive(dir+"max_link_width")),
			Bridges:    t.bridges(address),
		}
		if device, ok := hex(t.text(dir+"device"), 16); ok {
			d.Device = fmt.Sprintf("0x%04x", device)
		}
		devices = append(devices, d)
	}
	return devices
}

// transferRate returns GT/s times lanes. The speed of a lane is a text like "16.0 GT/s PCIe", which older kernels write without the
// last word. A device that saves power has a lower speed at the moment (current_link_speed).
func transferRate(speed string, lanes int64) float64 {
	number, _, ok := strings.Cut(speed, " GT/s")
	rate, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(rate > 0 && rate < 1e4) || lanes > 32 { // the kernel writes 255 lanes if it does not know them
		return 0
	}
	return rate * float64(lanes)
}

// nodeOf returns the NUMA node of a PCI function. It is unknown for the address "".
func (t tree) nodeOf(address string) ID {
	if address == "" {
		return unknown
	}
	return t.id(pciDevices + "/" + address + "/numa_node")
}

func (t tree) rdma() (adapters []RDMA) {
	for _, name := range t.names(rdmaClass) {
		dir := rdmaClass + "/" + name + "/"
		a := RDMA{Name: name, Address: t.pci(dir + "device"), Interfaces: t.names(dir + "device/net")}
		a.Node = t.nodeOf(a.Address)
		for _, number := range t.numbered(dir+"ports", "") {
			port := fmt.Sprintf("%sports/%d/", dir, number)
			_, state, _ := strings.Cut(t.text(port+"state"), ": ") // "4: ACTIVE"
			a.Ports = append(a.Ports, Port{
				Number: number, State: state, Link: t.text(port + "link_layer"), Gbps: portRate(t.text(port + "rate")),
			})
		}
		adapters = append(adapters, a)
	}
	return adapters
}

// portRate reads the rate of a port, like "400 Gb/sec (4X NDR)" or "2.5 Gb/sec (1X SDR)".
func portRate(text string) float64 {
	number, _, ok := strings.Cut(text, " Gb/sec")
	rate, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(rate > 0 && rate < 1e6) { // the negation refuses NaN too, which JSON cannot hold
		return 0
	}
	return rate
}

// speed returns the speed of an interface in Mbit/s. The kernel writes -1 for an unknown speed, some drivers the same number
// without a sign.
func (t tree) speed(path string) int64 {
	if n := t.positive(path); n < 1<<31 {
		return n
	}
	return 0
}

// Flags of interfaces, from linux/if.h.
const (
	iffUp       = 0x1
	iffLoopback = 0x8
)

func (t tree) interfaces() (list []Interface) {
	for _, name := range t.names(netClass) {
		dir := netClass + "/" + name + "/"
		flags, ok := hex(t.text(dir+"flags"), 32)
		if !ok { // bonding_masters is a file
			continue
		}
		state := t.text(dir + "operstate") // "unknown" if the driver does not report the state, as for loopback
		i := Interface{
			Name:     name,
			Up:       flags&iffUp != 0 && (state == "up" || state == "unknown"),
			Loopback: flags&iffLoopback != 0,
			Mbps:     t.speed(dir + "speed"),
			MTU:      t.positive(dir + "mtu"),
			Address:  t.pci(dir + "device"),
		}
		i.Node = t.nodeOf(i.Address)
		list = append(list, i)
	}
	return list
}

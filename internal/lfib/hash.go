// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"encoding/binary"
	"hash/fnv"
)

// Bucket is the bucket of a choice by hash, 0 to 63: the low bits of the packet's hash.
func Bucket(hash uint32) int { return int(hash % 64) }

// EntropyLabel is the entropy label that a hash makes: its high 20 bits, kept away from the
// special-purpose labels (RFC 6790 §3), which must not be used.
func EntropyLabel(hash uint32) Label { return entropyOf(Label(hash >> 12)) }

func entropyOf(l Label) Label {
	if l < firstFree {
		l |= firstFree
	}
	return l
}

// HashKey is what of a packet may decide which way it takes, so that a microflow stays on
// one (RFC 7325 §2.4.5, RFC 6790 §4.3). It is taken of the packet as it came in, behind its
// Ethernet header: of a labelled one the entropy label alone, if it has one, else the label
// values, without the special-purpose ones; then, if the payload is IP by its first nibble,
// addresses and protocol, and the ports if they are in this very packet and nothing stands
// between the headers. TTL, TC, S, DSCP and ECN have no part in it.
func HashKey(packet []byte, labelled bool) []byte {
	var key []byte
	if !labelled {
		return ipKey(key, packet)
	}
	for depth := 0; depth < MaxDepth && len(packet) >= lseLen; depth++ {
		e := lse(packet)
		packet = packet[lseLen:]
		switch {
		case e.label() == ELI && !e.bottom():
			if len(packet) < lseLen {
				return key
			}
			return lse(packet).appendLabel(nil)
		case e.label() == extension && !e.bottom() && len(packet) >= lseLen:
			// What stands behind it is special-purpose, too (RFC 7274 §3.1).
			e, packet = lse(packet), packet[lseLen:]
		case e.label() >= firstFree:
			key = e.appendLabel(key)
		}
		if e.bottom() {
			return ipKey(key, packet)
		}
	}
	return key
}

const extension Label = 15

func (e lse) appendLabel(key []byte) []byte {
	return binary.BigEndian.AppendUint32(key, uint32(e.label()))
}

func ipKey(key, packet []byte) []byte {
	switch version(packet) {
	case 4:
		key = append(key, packet[9])
		key = append(key, packet[12:20]...)
		whole := packet[0]&0xf == 5 && binary.BigEndian.Uint16(packet[6:])&0x3fff == 0
		if whole && hasPorts(packet[9]) && len(packet) >= 24 {
			key = append(key, packet[20:24]...)
		}
	case 6:
		key = append(key, packet[6])
		key = append(key, packet[8:40]...)
		if hasPorts(packet[6]) && len(packet) >= 44 {
			key = append(key, packet[40:44]...)
		}
	}
	return key
}

// hasPorts tells whether a protocol begins with its ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
func hasPorts(proto byte) bool {
	switch proto {
	case 6, 17, 33, 132, 136:
		return true
	}
	return false
}

// fnvHash is the hash of a test that brings none.
func fnvHash(key []byte) uint32 {
	h := fnv.New32a()
	h.Write(key)
	return h.Sum32()
}

// SPDX-License-Identifier: Apache-2.0

// Package nl reads netlink messages: whole tables by Dump and Ask, and the attributes in a
// message by Attributes, Nested and Inner.
//
// Packages kernel and nft call it. It keeps no state.
package nl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// SizeofNfgenmsg is the length of the header of every nfnetlink message, in bytes: family,
// version, id.
const SizeofNfgenmsg = 4

// interruptions is how often a dump is started again because the table changed
// under it; a table that changes faster than that is read as it is.
const interruptions = 5

// Dump asks for a whole table.
func Dump(family int, typ netlink.HeaderType, body []byte) ([]netlink.Message, error) {
	conn, err := netlink.Dial(family, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return Ask(conn, typ, netlink.Dump, body)
}

// Ask sends one request and returns the whole answer. The kernel marks a dump with
// NLM_F_DUMP_INTR if the table changed meanwhile: it may lack entries that were
// there all the time, so it is asked for again.
func Ask(conn *netlink.Conn, typ netlink.HeaderType, flags netlink.HeaderFlags, body []byte) ([]netlink.Message, error) {
	request := netlink.Message{
		Header: netlink.Header{Type: typ, Flags: netlink.Request | flags},
		Data:   body,
	}
	for try := 0; ; try++ {
		messages, err := conn.Execute(request)
		if err != nil || !interrupted(messages) || try == interruptions {
			return messages, err
		}
	}
}

func interrupted(messages []netlink.Message) bool {
	for _, m := range messages {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return true
		}
	}
	return false
}

// Absent reports whether err says that the kernel lacks a subsystem, which then
// has nothing to report: no nftables compiled in, no conntrack loaded.
func Absent(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) ||
		errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.ENOENT)
}

// Attributes decodes the attributes that follow a message's fixed header of the
// given size, calling field for each.
func Attributes(m netlink.Message, header int, field func(*netlink.AttributeDecoder)) error {
	if len(m.Data) < header {
		return fmt.Errorf("netlink message %#x: %d bytes, shorter than its header", m.Header.Type, len(m.Data))
	}
	return Nested(m.Data[header:], field)
}

// Nested decodes attributes from bytes, calling field for each.
func Nested(b []byte, field func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	for ad.Next() {
		field(ad)
	}
	return ad.Err()
}

// Inner decodes the attributes that are nested in the current one, calling field for each.
func Inner(ad *netlink.AttributeDecoder, field func(*netlink.AttributeDecoder)) {
	ad.Nested(func(nad *netlink.AttributeDecoder) error {
		for nad.Next() {
			field(nad)
		}
		return nil
	})
}

// BigEndian makes a decoder read as nfnetlink writes: in network order.
func BigEndian(ad *netlink.AttributeDecoder) { ad.ByteOrder = binary.BigEndian }

// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nft"
	"shunt/internal/nl"
)

// Hooks returns, in words, the packet hooks that other people set on a link and
// that the fast path would skip or run before: tc filters and nftables chains at ingress, and
// nftables flowtables. It needs CAP_NET_ADMIN. Programs attached by BPF links, tcx ones among
// them, are not seen. Filters and chains at egress are part of the Queue.
func Hooks(link Link) ([]string, error) {
	hooks, err := ingressFilters(link.Index)
	if err != nil {
		return nil, fmt.Errorf("%s: tc filters: %w", link.Name, err)
	}
	chains, err := nftHooks(unix.NFT_MSG_GETCHAIN, link.Name, false)
	if err != nil {
		return nil, fmt.Errorf("%s: nftables chains: %w", link.Name, err)
	}
	flowtables, err := nftHooks(unix.NFT_MSG_GETFLOWTABLE, link.Name, false)
	if err != nil {
		return nil, fmt.Errorf("%s: nftables flowtables: %w", link.Name, err)
	}
	return append(append(hooks, chains...), flowtables...), nil
}

func ingressFilters(index int) ([]string, error) {
	filters, err := tcFilters(index, tcClsactIngress)
	if err != nil {
		return nil, err
	}
	var hooks []string
	for _, f := range filters {
		words := strings.TrimSpace(fmt.Sprintf("tc ingress filter %s pref %d %s", f.kind, f.info>>16, f.name))
		if !slices.Contains(hooks, words) { // u32 has several handles at one preference
			hooks = append(hooks, words)
		}
	}
	return hooks, nil
}

// Attributes that x/sys lacks (include/uapi/linux/netfilter/nf_tables.h).
const (
	nftaHookDevs          = 4
	nftaFlowtableTable    = 1
	nftaFlowtableName     = 2
	nftaFlowtableHook     = 3
	nftaFlowtableHookDevs = 3
	nftaDeviceName        = 1
	nftaDevicePrefix      = 2 // Linux 6.16: "eth*"
)

// nfInetIngress is NF_INET_INGRESS: what makes an inet chain belong to a device.
const nfInetIngress = 5

const nfNetdevEgress = 1 // NF_NETDEV_EGRESS

// nftHook is a chain or flowtable and the devices it is bound to.
type nftHook struct {
	what, family, table, name string
	devices                   []string // a trailing * stands for the rest
	egress                    bool
}

func (h nftHook) on(device string) bool {
	for _, d := range h.devices {
		prefix, wild := strings.CutSuffix(d, "*")
		if d == device || wild && strings.HasPrefix(device, prefix) {
			return true
		}
	}
	return false
}

func (h nftHook) String() string {
	return fmt.Sprintf("nftables %s %s %s %s", h.what, h.family, h.table, h.name)
}

// nftHooks returns the chains or the flowtables bound to a device at ingress or at egress, in words.
func nftHooks(get netlink.HeaderType, device string, egress bool) ([]string, error) {
	typ := netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8) | get
	messages, err := nl.Dump(unix.NETLINK_NETFILTER, typ, make([]byte, nl.SizeofNfgenmsg))
	if nl.Absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	decode := decodeChain
	if get == unix.NFT_MSG_GETFLOWTABLE {
		decode = decodeFlowtable
	}
	var hooks []string
	for _, m := range messages {
		h, err := decode(m)
		if err != nil {
			return nil, err
		}
		if h.on(device) && h.egress == egress {
			hooks = append(hooks, h.String())
		}
	}
	return hooks, nil
}

func decodeChain(m netlink.Message) (nftHook, error) {
	h := nftHook{what: "chain"}
	var hooknum uint32
	err := nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			h.table = ad.String()
		case unix.NFTA_CHAIN_NAME:
			h.name = ad.String()
		case unix.NFTA_CHAIN_HOOK:
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
				nl.BigEndian(ad)
				switch ad.Type() {
				case unix.NFTA_HOOK_HOOKNUM:
					hooknum = ad.Uint32()
				case unix.NFTA_HOOK_DEV:
					h.devices = append(h.devices, ad.String())
				case nftaHookDevs:
					h.addDevices(ad)
				}
			})
		}
	})
	if err != nil {
		return h, err
	}
	h.family = nft.FamilyName(m.Data[0])
	h.egress = m.Data[0] == unix.NFPROTO_NETDEV && hooknum == nfNetdevEgress
	if m.Data[0] != unix.NFPROTO_NETDEV && !(m.Data[0] == unix.NFPROTO_INET && hooknum == nfInetIngress) {
		h.devices = nil
	}
	return h, nil
}

func decodeFlowtable(m netlink.Message) (nftHook, error) {
	h := nftHook{what: "flowtable"}
	err := nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case nftaFlowtableTable:
			h.table = ad.String()
		case nftaFlowtableName:
			h.name = ad.String()
		case nftaFlowtableHook:
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
				if ad.Type() == nftaFlowtableHookDevs {
					h.addDevices(ad)
				}
			})
		}
	})
	if err != nil {
		return h, err
	}
	h.family = nft.FamilyName(m.Data[0])
	return h, nil
}

func (h *nftHook) addDevices(ad *netlink.AttributeDecoder) {
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case nftaDeviceName:
			h.devices = append(h.devices, ad.String())
		case nftaDevicePrefix:
			h.devices = append(h.devices, ad.String()+"*")
		}
	})
}

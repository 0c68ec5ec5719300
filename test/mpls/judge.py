# SPDX-License-Identifier: Apache-2.0
# Reads frames in hex from a JSON list, and writes what scapy sees in them.
import json, sys
from scapy.all import Ether, Dot1Q, IP, IPv6, ICMP, raw
from scapy.contrib.icmp_extensions import ICMPExtensionHeader, ICMPExtensionMPLS
from scapy.contrib.mpls import MPLS
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6PacketTooBig, ICMPv6TimeExceeded, in6_chksum
from scapy.utils import checksum

sys.setrecursionlimit(100000)  # a layer for each entry


def stack(layer):
    labels = []
    while isinstance(layer, MPLS):
        labels.append([layer.label, layer.cos, layer.s, layer.ttl])
        layer = layer.payload
    return labels, layer


def address(ip):
    if isinstance(ip, IP):
        return {"version": 4, "ttl": ip.ttl, "dscp": ip.tos >> 2, "ecn": ip.tos & 3, "length": ip.len,
                "source": ip.src, "dest": ip.dst, "df": bool(ip.flags.DF), "more": bool(ip.flags.MF),
                "offset": ip.frag * 8, "checksum": checksum(ip.original[:ip.ihl * 4]) == 0}
    return {"version": 6, "ttl": ip.hlim, "dscp": ip.tc >> 2, "ecn": ip.tc & 3, "length": ip.plen + 40,
            "source": ip.src, "dest": ip.dst, "df": False, "more": False, "offset": 0, "checksum": True}


def error(ip):
    """The ICMP error that a packet is, with its extension (RFC 4884, RFC 4950)."""
    for kind in ICMP, ICMPv6DestUnreach, ICMPv6TimeExceeded, ICMPv6PacketTooBig:
        m = ip.payload
        if not isinstance(m, kind) or kind is ICMP and m.type not in (3, 11):
            continue
        # As they came: what scapy builds anew lacks bytes of a quoted datagram that is padded.
        b = m.original[:ip.len - 20 if kind is ICMP else ip.plen]
        mtu, quoted = 0, b[4] * 8
        if kind is ICMP:
            mtu, quoted = m.nexthopmtu if m.type == 3 else 0, b[5] * 4
        elif kind is ICMPv6PacketTooBig:
            mtu, quoted = m.mtu, 0
        labels = []
        if quoted:
            # Over all that follows: scapy 2.5 builds a sum of the header alone (RFC 4884 §7).
            header = ICMPExtensionHeader(b[8 + quoted:])
            if header.version != 2 or checksum(b[8 + quoted:]) != 0 or not isinstance(header.payload, ICMPExtensionMPLS):
                labels = [[-1, -1, -1, -1]]
            else:
                for entry in header.payload.stack:
                    labels += stack(entry)[0]
        good = checksum(b) == 0 if kind is ICMP else in6_chksum(58, ip, b) == 0
        return {"type": m.type, "code": m.code, "mtu": mtu, "checksum": good, "stack": labels}
    return None


verdicts = []
for text in json.load(sys.stdin):
    frame = Ether(bytes.fromhex(text))
    kind, layer = frame.type, frame.payload
    if isinstance(layer, Dot1Q):
        kind, layer = layer.type, layer.payload
    if kind == 0x8848 and len(raw(layer)) >= 4:
        layer = MPLS(raw(layer))
    labels, layer = stack(layer)
    verdict = {"type": kind, "labels": labels}
    if isinstance(layer, (IP, IPv6)) and len(raw(layer)) >= (20 if isinstance(layer, IP) else 40):
        verdict["ip"] = address(layer)
        found = error(layer)
        if found:
            verdict["icmp"] = found
    verdicts.append(verdict)
json.dump(verdicts, sys.stdout)

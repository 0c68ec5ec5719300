// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// Rules calls visit with the rules of a chain, in their order; one that is gone has none.
func (n *Ruleset) Rules(chain Ref, visit func(Rule)) error {
	body, err := request(chain.Table, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_RULE_TABLE, chain.Table.Name)
		ae.String(unix.NFTA_RULE_CHAIN, chain.Name)
	})
	if err != nil {
		return err
	}
	err = dump(unix.NFT_MSG_GETRULE, body, func(m netlink.Message) error {
		r, err := decodeRule(m)
		if err == nil {
			visit(r)
		}
		return err
	})
	if err != nil && !nl.Absent(err) {
		return fmt.Errorf("nftables rules of %s %s: %w", chain.Table, chain.Name, err)
	}
	return nil
}

func decodeRule(m netlink.Message) (Rule, error) {
	r := Rule{Ref: Ref{Table: Table{Family: m.Data[0]}}}
	err := nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		nl.BigEndian(ad)
		switch ad.Type() {
		case unix.NFTA_RULE_TABLE:
			r.Table.Name = ad.String()
		case unix.NFTA_RULE_CHAIN:
			r.Name = ad.String()
		case unix.NFTA_RULE_HANDLE:
			r.Handle = ad.Uint64()
		case unix.NFTA_RULE_USERDATA:
			r.Comment = ruleComment(ad.Bytes())
		case unix.NFTA_RULE_EXPRESSIONS:
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) { r.Exprs = append(r.Exprs, decodeExpr(ad)) })
		}
	})
	return r, err
}

// ruleComment finds nft's comment in the data that it keeps with a rule: type, length,
// value (libnftnl's udata.h).
func ruleComment(data []byte) string {
	const comment = 0 // NFTNL_UDATA_RULE_COMMENT
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		if data[0] == comment {
			return string(bytes.TrimRight(data[2:2+data[1]], "\x00"))
		}
		data = data[2+data[1]:]
	}
	return ""
}

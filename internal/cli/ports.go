// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	"shunt/internal/api"
)

func (e *env) portsCommand() *cobra.Command {
	return e.reader(&cobra.Command{
		Use:   "ports",
		Short: "Show the ports, and what keeps one from being fast",
		Long: `Shows every interface that was named: which programs it has, what came in (HITS were
repeated, PUNTS went to the kernel), and what became of the frames that were redirected
out of it (SENT, LOST). Below, for each port that is not all it could be: why, and what
helps.`,
		Example: `  shunt ports
  shunt ports --json | jq '.[] | select(.state == "refused")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ports, err := e.ports(cmd.Context())
			if err != nil {
				return err
			}
			return e.show(ports, func(p *page) { e.sayUnattended(p); printPorts(p, ports) })
		},
	})
}

func printPorts(p *page, ports []api.Port) {
	t := newTable("PORT", "STATE", "XDP", "DRIVER", ">MTU", "QDISC", ">HITS", ">PUNTS", ">SENT", ">LOST")
	for _, port := range ports {
		if port.State == api.PortAbsent {
			t.add(port.Name, portState(port))
			continue
		}
		lost := cell{count(port.Drops + port.Errors), plain}
		if port.Drops+port.Errors > 0 {
			lost.style = red
		}
		t.add(port.Name, portState(port), xdpWords(port), port.Driver, plainInt(port.MTU), port.Qdisc,
			count(port.Hits), count(port.Punts), count(port.Sent), lost)
	}
	p.table(t)
	for _, port := range ports {
		if port.Reason != "" {
			p.line("%s: %s", p.paint(clean(port.Name), bold), clean(sentence(port.Reason, port.Remedy)))
		}
		if port.Labels != "" {
			p.line("%s: %s", p.paint(clean(port.Name), bold), clean(port.Labels))
		}
	}
}

func portState(port api.Port) cell {
	styles := map[string]style{api.PortXDPAndTC: green, api.PortRefused: red, api.PortAbsent: yellow}
	return cell{port.State, styles[port.State]}
}

// xdpWords says for which directions a port has XDP.
func xdpWords(port api.Port) string {
	switch {
	case port.XDPReceive && port.XDPTransmit:
		return "in, out"
	case port.XDPReceive:
		return "in"
	case port.XDPTransmit:
		return "out"
	}
	return "-"
}

// sentence joins a finding and its remedy, if there is one.
func sentence(finding, remedy string) string {
	if remedy == "" {
		return finding
	}
	return finding + "; " + remedy
}

func plainInt(n int) string { return strconv.Itoa(n) }

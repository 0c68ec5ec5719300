// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"fmt"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// WriteFiles writes the report's tables and a chart to a directory, for the documentation: chain.md, chain.svg
// and chain.png.
func (f *ChainReport) WriteFiles(dir string) error {
	if len(f.Results) == 0 {
		return errNoFigures
	}
	svg, png, err := f.chart()
	if err != nil {
		return fmt.Errorf("bench: chart: %w", err)
	}
	return writeFiles(dir, map[string][]byte{"chain.md": f.markdown(), "chain.svg": svg, "chain.png": png})
}

// chainTitles say a way in words.
var chainTitles = map[ChainWay]string{ChainKernel: "kernel, IP", ChainIP: "shunt, IP", ChainMPLS: "shunt, MPLS"}

// markdown is a table for each size.
func (f *ChainReport) markdown() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Routers in a row\n\nWritten by `%s --out`, %s. %s, %d cores, Linux %s,\n%s, shunt %s.\n",
		f.Command, f.Date.Format("2006-01-02"), f.CPU, f.Cores, f.Kernel, f.Clang, f.Version)
	fmt.Fprintf(&b, "\nRound trips in microseconds: medians over the rounds of each round's median, and of its 99th percentile, of %s.\nBytes are those of the frame without labels and FCS; ratios are of medians, with the least and the most round.\n\n![round trips](chain.svg)\n",
		Thousands(float64(f.Echoes)))
	for _, bytes := range f.Sizes {
		fmt.Fprintf(&b, "\n## %d bytes\n\n| routers |", bytes)
		for _, way := range ChainWays() {
			fmt.Fprintf(&b, " %s | 99 %% |", chainTitles[way])
		}
		fmt.Fprint(&b, " MPLS over shunt's IP | over the kernel's IP |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
		for _, hops := range f.Hops {
			fmt.Fprintf(&b, "| %d |", hops)
			for _, way := range ChainWays() {
				if r := f.Find(way, hops, bytes); r != nil {
					fmt.Fprintf(&b, " %.1f | %.1f |", r.Median.Median*1e6, r.P99.Median*1e6)
				}
			}
			if mpls := f.Find(ChainMPLS, hops, bytes); mpls != nil {
				fmt.Fprintf(&b, " %s | %s |", ratioText(mpls.OfIP), ratioText(mpls.OfKernel))
			}
			fmt.Fprintln(&b)
		}
	}
	return b.Bytes()
}

// ratioText is a ratio with the least and the most round.
func ratioText(s Spread) string { return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median, s.Min, s.Max) }

// chart draws round trips over the number of routers: a line for each way, of the smallest frames and, dashed, the largest.
func (f *ChainReport) chart() (svg, png []byte, err error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("Round trips, %s routes in each router", Thousands(float64(f.Routes)))
	p.X.Label.Text, p.Y.Label.Text = "routers", "microseconds, median"
	p.Y.Min = 0
	for _, size := range slices.Compact([]int{f.Sizes[0], f.Sizes[len(f.Sizes)-1]}) {
		for i, way := range ChainWays() {
			var points plotter.XYs
			for _, hops := range f.Hops {
				if r := f.Find(way, hops, size); r != nil {
					points = append(points, plotter.XY{X: float64(hops), Y: r.Median.Median * 1e6})
					p.Y.Max = max(p.Y.Max, r.Median.Median*1e6*1.25) // room for the legend
				}
			}
			if points == nil {
				continue
			}
			look := chartLine{colour: plotutil.Color(i), shape: plotutil.Shape(i), dashed: size != f.Sizes[0]}
			if err := addLine(p, fmt.Sprintf("%s, %d bytes", chainTitles[way], size), points, look); err != nil {
				return nil, nil, err
			}
		}
	}
	var ticks plot.ConstantTicks
	for _, hops := range f.Hops {
		ticks = append(ticks, plot.Tick{Value: float64(hops), Label: fmt.Sprint(hops)})
	}
	p.X.Tick.Marker = ticks
	p.Legend.Top, p.Legend.Left, p.Legend.Padding = true, true, vg.Points(2)
	return render(p, chartTall)
}

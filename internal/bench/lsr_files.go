// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"shunt/internal/lab"
)

// WriteFiles writes the report's tables and a chart for each number of cores to a directory, for the
// documentation: lsr.md, lsr-1-core.svg, lsr-2-cores.svg, and both as PNG.
func (f *LSRReport) WriteFiles(dir string) error {
	if len(f.Results) == 0 {
		return errNoFigures
	}
	files := map[string][]byte{"lsr.md": f.markdown()}
	for cores, name := range lsrCharts {
		svg, png, err := f.chart(cores)
		if err != nil {
			return fmt.Errorf("bench: chart: %w", err)
		}
		files[name+".svg"], files[name+".png"] = svg, png
	}
	return writeFiles(dir, files)
}

// lsrCharts are the files' names, by cores.
var lsrCharts = map[int]string{1: "lsr-1-core", 2: "lsr-2-cores"}

// lsrTitle says an operation in words.
func lsrTitle(op LSROperation) string {
	switch op {
	case LSRLimit:
		return "empty redirect"
	case LSRKernel:
		return "kernel, IP"
	case lab.OpIP:
		return "shunt, IP"
	}
	return "shunt, MPLS " + string(op)
}

// markdown is a table for each number of cores: rates, and ratios with the least and the most round.
func (f *LSRReport) markdown() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# A label switching router\n\nWritten by `%s --out`, %s. %s, %d cores, Linux %s,\n%s, shunt %s.\n",
		f.Command, f.Date.Format("2006-01-02"), f.CPU, f.Cores, f.Kernel, f.Clang, f.Version)
	fmt.Fprint(&b, "\nMillions of frames per second, medians of the rounds. Bytes are those of the frame without labels and FCS; each label is four more.\n")
	for cores := 1; cores <= 2; cores++ {
		words := "One core: generator, router and sink share it"
		if cores == 2 {
			words = "Two cores: both directions at once, each on a core of its own"
		}
		fmt.Fprintf(&b, "\n## %s\n\n| bytes |", words)
		for _, op := range LSROperations() {
			fmt.Fprintf(&b, " %s |", lsrTitle(op))
		}
		fmt.Fprint(&b, "\n|---:|")
		for range LSROperations() {
			fmt.Fprint(&b, "---:|")
		}
		for _, size := range f.Sizes {
			fmt.Fprintf(&b, "\n| %d |", size)
			for _, op := range LSROperations() {
				fmt.Fprintf(&b, " %.2f |", f.Find(op, cores, size).PPS.Median/1e6)
			}
		}
		f.markdownRatios(&b, cores)
		fmt.Fprintf(&b, "\n![frames per second by size](%s.svg)\n", lsrCharts[cores])
	}
	return b.Bytes()
}

// markdownRatios is a table of what MPLS does beside IP, round by round.
func (f *LSRReport) markdownRatios(b *bytes.Buffer, cores int) {
	fmt.Fprint(b, "\n\n| bytes | operation | over shunt's IP | over the kernel's IP | over the empty redirect |\n|---:|---|---:|---:|---:|\n")
	for _, size := range f.Sizes {
		for _, op := range LSROperations()[3:] {
			r := f.Find(op, cores, size)
			fmt.Fprintf(b, "| %d | %s | %s | %s | %s |\n", size, op, ratioText(r.OfIP), ratioText(r.OfKernel), ratioText(r.OfLimit))
		}
	}
}

// chart draws frames per second over their size, a line for each operation.
func (f *LSRReport) chart(cores int) (svg, png []byte, err error) {
	p := plot.New()
	p.Title.Text = map[int]string{1: "Label switching router, one core", 2: "Label switching router, two cores, both directions"}[cores]
	p.X.Label.Text, p.Y.Label.Text = "bytes of a frame without labels and FCS", "million frames per second"
	p.Y.Min = 0
	for i, op := range LSROperations() {
		var points plotter.XYs
		for _, size := range f.Sizes {
			points = append(points, plotter.XY{X: float64(size), Y: f.Find(op, cores, size).PPS.Median / 1e6})
		}
		if err := addLine(p, lsrTitle(op), points, chartLine{colour: plotutil.Color(i), shape: plotutil.Shape(i)}); err != nil {
			return nil, nil, err
		}
		for _, xy := range points {
			p.Y.Max = max(p.Y.Max, xy.Y*1.35) // room for the legend
		}
	}
	var ticks plot.ConstantTicks
	for _, size := range f.Sizes {
		ticks = append(ticks, plot.Tick{Value: float64(size), Label: fmt.Sprint(size)})
	}
	p.X.Tick.Marker = ticks
	p.Legend.Top, p.Legend.Padding = true, vg.Points(2)
	return render(p, chartTall)
}

const chartTall = 5 * vg.Inch

// chartLine is how a line looks.
type chartLine struct {
	colour color.Color
	shape  draw.GlyphDrawer
	dashed bool
}

// addLine adds a line with its points and its name.
func addLine(p *plot.Plot, name string, points plotter.XYs, look chartLine) error {
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.Color, dots.Color, dots.Shape = look.colour, look.colour, look.shape
	line.Width = vg.Points(1.5)
	if look.dashed {
		line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
	}
	p.Add(line, dots)
	p.Legend.Add(name, line, dots)
	return nil
}

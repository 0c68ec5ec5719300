// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// WriteFiles writes the report's table and chart to a directory, for the documentation:
// instructions.md, instructions.svg and instructions.png.
func (f *InstructionsReport) WriteFiles(dir string) error {
	if len(f.Cases) == 0 {
		return errNoFigures
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	svg, png, err := f.chart()
	if err != nil {
		return fmt.Errorf("bench: chart: %w", err)
	}
	for _, file := range []struct {
		name string
		text []byte
	}{{"instructions.md", f.markdown()}, {"instructions.svg", svg}, {"instructions.png", png}} {
		if err := os.WriteFile(filepath.Join(dir, file.name), file.text, 0o644); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	return nil
}

// markdown is the table, one line for each case, with the numbers of flows side by side.
func (f *InstructionsReport) markdown() []byte {
	var flows []int
	var names []string
	for _, c := range f.Cases {
		if !slices.Contains(flows, c.Flows) {
			flows = append(flows, c.Flows)
		}
		if !slices.Contains(names, c.Name) {
			names = append(names, c.Name)
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Instructions per packet\n\nWritten by `shunt bench instructions --out`, %s, rounds: %d. Linux %s,\n%s, shunt %s.\n\n",
		f.Date.Format("2006-01-02"), f.Rounds, f.Kernel, f.Clang, f.Version)
	fmt.Fprint(&b, "| case | what |")
	for _, n := range flows {
		fmt.Fprintf(&b, " flows: %s |", Thousands(float64(n)))
	}
	fmt.Fprint(&b, " over the limit | rounds apart |\n|---|---|")
	for range len(flows) + 2 {
		fmt.Fprint(&b, "---:|")
	}
	fmt.Fprintln(&b)
	for _, name := range names {
		f.markdownRow(&b, name, flows)
	}
	for _, s := range f.Skipped {
		fmt.Fprintf(&b, "\nSkipped: %s\n", s)
	}
	fmt.Fprint(&b, "\n![bars](instructions.svg)\n")
	return b.Bytes()
}

func (f *InstructionsReport) markdownRow(b *bytes.Buffer, name string, flows []int) {
	over, apart := "", 0.0
	var cells []string
	title := ""
	for i, n := range flows {
		c := f.Find(name, n)
		if c == nil {
			cells = append(cells, "")
			continue
		}
		title, apart = c.Title, max(apart, c.Apart)
		if c.Over != overGenerator {
			title += ", over " + c.Over
		}
		if c.OverLimit != nil && i == 0 {
			over = Thousands(*c.OverLimit)
		}
		cells = append(cells, Thousands(c.Net.Median))
	}
	fmt.Fprintf(b, "| `%s` | %s |", name, title)
	for _, cell := range cells {
		fmt.Fprintf(b, " %s |", cell)
	}
	fmt.Fprintf(b, " %s | %.2f %% |\n", over, 100*apart)
}

// Colours of the chart's bars: ours, the limit, everybody else's.
var (
	barOurs  = color.RGBA{0x1b, 0x7f, 0x4f, 0xff}
	barLimit = color.RGBA{0x99, 0x99, 0x99, 0xff}
	barOther = color.RGBA{0x3b, 0x6f, 0xb6, 0xff}
)

const (
	chartWidth, chartRow = 8 * vg.Inch, 0.3 * vg.Inch
	chartMargin          = 0.15 * vg.Inch
	chartDPI             = 120
)

// chart draws one bar for each case that is counted over generator and sink, with the
// fewest flows that were counted; the cheapest on top.
func (f *InstructionsReport) chart() (svg, png []byte, err error) {
	bars := f.bars()
	if len(bars) == 0 {
		return nil, nil, errNoFigures
	}
	p := plot.New()
	p.Title.Text = fmt.Sprintf("Instructions per packet of %d bytes, flows: %d", bars[0].Bytes, bars[0].Flows)
	p.X.Label.Text = "over generator and sink; Linux " + f.Kernel
	p.X.Min = 0
	var labels plotter.XYLabels
	titles := make([]string, len(bars))
	for i, c := range bars {
		bar, err := plotter.NewBarChart(plotter.Values{c.Net.Median}, chartRow*2/3)
		if err != nil {
			return nil, nil, err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width, bar.Color = true, float64(i), 0, barOther
		switch {
		case ours(c.Name):
			bar.Color = barOurs
		case c.Name == "limit":
			bar.Color = barLimit
		}
		p.Add(bar)
		titles[i] = c.Title
		labels.XYs = append(labels.XYs, plotter.XY{X: c.Net.Median, Y: float64(i)})
		labels.Labels = append(labels.Labels, " "+Thousands(c.Net.Median))
		p.X.Max = max(p.X.Max, c.Net.Median*1.1) // room for the number
	}
	numbers, err := plotter.NewLabels(labels)
	if err != nil {
		return nil, nil, err
	}
	for i := range numbers.TextStyle {
		numbers.TextStyle[i].YAlign = draw.YCenter
	}
	p.Add(numbers)
	p.NominalY(titles...)
	return render(p, chartRow*vg.Length(len(bars)+4))
}

// bars are the cases for the chart, the most expensive first: the chart is drawn upwards.
func (f *InstructionsReport) bars() (bars []InstructionsCase) {
	for _, c := range f.Cases {
		if c.Over == overGenerator && c.Flows == f.Cases[0].Flows {
			bars = append(bars, c)
		}
	}
	slices.SortStableFunc(bars, func(a, b InstructionsCase) int { return int(b.Net.Median - a.Net.Median) })
	return bars
}

func render(p *plot.Plot, height vg.Length) (svg, png []byte, err error) {
	var lines, dots bytes.Buffer
	vector := vgsvg.New(chartWidth, height)
	p.Draw(inside(vector))
	if _, err := vector.WriteTo(&lines); err != nil {
		return nil, nil, err
	}
	raster := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(chartWidth, height), vgimg.UseDPI(chartDPI))}
	p.Draw(inside(raster))
	_, err = raster.WriteTo(&dots)
	return lines.Bytes(), dots.Bytes(), err
}

// inside leaves a margin: the plot's own reckoning of text is a little short.
func inside(c vg.CanvasSizer) draw.Canvas {
	return draw.Crop(draw.New(c), chartMargin, -chartMargin, chartMargin, -chartMargin)
}

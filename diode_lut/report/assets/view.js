// Vega-Lite charts in the page's style, that say what the pointer is on.

const FONT = "system-ui, sans-serif";
const wanted = new Map();
const drawn = new Map();

const theme = () => ({
  aria: false,
  background: null,
  font: FONT,
  view: { stroke: style("--line") },
  axis: {
    labelColor: style("--muted"), titleColor: style("--muted"), labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal",
    gridColor: style("--grid"), domainColor: style("--line"), tickColor: style("--line"),
  },
  header: { labelColor: style("--text"), labelFontSize: 12, labelFontWeight: 600, labelPadding: 4 },
});

// The chosen row is drawn with a thick border.
const CHOSEN = "chosen";
const chosenOr = (chosen, otherwise) => ({ condition: { test: `datum.row === ${CHOSEN}`, value: chosen }, value: otherwise });

// Draws what the specification makes of the values, one chart after the other; of what has to wait, only what was asked for last.
function draw(id, values, specOf, onPoint) {
  wanted.set(id, values);
  const next = async (before) => {
    if (wanted.get(id) !== values) return before;
    before?.finalize();
    const container = document.getElementById(id);
    if (!values.length) return container.replaceChildren(element("p", { className: "hint" }, "Nothing to show."));
    const spec = specOf(values, container.clientWidth);
    const full = { ...spec, params: [{ name: CHOSEN, value: details.row ?? -1 }], config: theme() };
    const chart = await vegaEmbed(container, full, { mode: "vega-lite", renderer: "svg", actions: false, tooltip: false });
    for (const event of ["mouseover", "click"]) {
      chart.view.addEventListener(event, (_, item) => item?.datum && onPoint?.(item.datum, event === "click"));
    }
    return chart;
  };
  drawn.set(id, Promise.resolve(drawn.get(id)).then(next));
}

const allDrawn = () => Promise.all(drawn.values());

const markChosen = async (row) => (await allDrawn()).forEach((chart) => chart?.view.signal(CHOSEN, row).run());

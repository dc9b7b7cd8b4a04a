// Vega-Lite charts in the page's style, that say what the pointer is on.

const FONT = "system-ui, sans-serif";
const wanted = new Map();
const drawn = new Map();

const theme = () => ({
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

// Draws one after the other; of what has to wait, only what was asked for last.
function draw(id, spec, onPoint) {
  wanted.set(id, spec);
  const next = async (before) => {
    if (wanted.get(id) !== spec) return before;
    before?.finalize();
    const full = { ...spec, params: [{ name: CHOSEN, value: -1 }], config: theme() };
    const chart = await vegaEmbed(`#${id}`, full, { mode: "vega-lite", renderer: "svg", actions: false, tooltip: false });
    for (const event of ["mouseover", "click"]) {
      chart.view.addEventListener(event, (_, item) => item?.datum && onPoint?.(item.datum, event === "click"));
    }
    return chart;
  };
  drawn.set(id, Promise.resolve(drawn.get(id)).then(next));
}

const allDrawn = () => Promise.all(drawn.values());

const markChosen = async (row) => (await allDrawn()).forEach((chart) => chart.view.signal(CHOSEN, row).run());

const widthOf = (id) => document.getElementById(id).clientWidth;

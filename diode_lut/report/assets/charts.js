// The charts: how they are drawn, the map of coverage, templates, gains, times and regrets.

// Vega-Lite charts in the page's style report the point under the pointer.

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

// Draw charts in turn. Of several requests that wait for the same chart, only the last is drawn.
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

// Coverage, M by N: rectangles for ranges, points for exact sizes. Both axes have powers of two. Generated kernels have a
// chart of their own, by X and another size.

const UNLIMITED = 2 ** 31 - 1;
const THIN = 0.12; // A range of one size is still a line
const AXES = 96; // Pixels beside the panels
const BANDS = [[1, 64], [65, 256], [257, 1024], [1025, 4096], [4097, 16384], [16385, Infinity]];

const bandName = ([low, high]) => (high === Infinity ? `K over ${count(low - 1)}` : `K ${count(low)} to ${count(high)}`);

// The first and the last power of two of an axis.
function domainOf(shown, size) {
  const ends = [...shown.rows, ...shown.problems, ...shown.asked].flatMap((thing) => rangeOf(thing, size) ?? []).filter((end) => end < UNLIMITED);
  const first = ends.reduce((least, end) => Math.min(least, end), Infinity);
  const last = ends.reduce((most, end) => Math.max(most, end), 1);
  return ends.length ? [Math.log2(first) - 0.7, Math.log2(last) + 0.7] : [0, 16];
}

function span(range, [first, last]) {
  if (range === null) return [first, last];
  const [low, high] = [Math.log2(range[0]), range[1] === UNLIMITED ? last : Math.log2(range[1])];
  const lacking = Math.max(0, THIN - (high - low)) / 2;
  return [low - lacking, high + lacking];
}

// Each of two tables has its own panels.
const panelName = (data, name, table) => (data.tables.length === 1 ? name : `${name} · ${data.tables[table]}`);

const upright = ({ op, variant }) => (op !== "pointwise" ? "r" : variant === "flat" ? "loads" : "y");
const kernelName = ({ op, variant }) => [op, variant].filter(Boolean).join(" ");

// The matmuls of what is shown, or its generated kernels, with their sizes at the places of N and M.
function partOf(data, shown, generated) {
  const placed = (thing) => (generated ? { ...thing, n: thing.x, m: thing[upright(thing)] } : thing);
  const part = (things) => things.filter(({ op }) => isGenerated(data, op) === generated).map(placed);
  return { ...shown, rows: part(shown.rows), problems: part(shown.problems), asked: part(shown.asked) };
}

function panelsOf(thing, data, shown, by) {
  if (isGenerated(data, thing.op)) return [panelName(data, kernelName(thing), thing.table)];
  const kinds = () => thing.kinds.filter((kind) => shown.kinds[kind]).map((kind) => nameOf(data, data.kinds[kind]));
  const bands = () => BANDS.filter((band) => overlap(rangeOf(thing, "k"), band) && overlap(band, shown.filters.k)).map(bandName);
  return (by === "kind" ? kinds() : bands()).map((name) => panelName(data, name, thing.table));
}

function shapesOf(data, shown, { colour, panels }) {
  const [xs, ys] = [domainOf(shown, "n"), domainOf(shown, "m")];
  const shape = (thing, form) => {
    const [[x, x2], [y, y2]] = [span(rangeOf(thing, "n"), xs), span(rangeOf(thing, "m"), ys)];
    const drawn = { form, x, x2, y, y2, cx: (x + x2) / 2, cy: (y + y2) / 2, colour: colourOf(colour, SCALES[colour].classOf(thing)) };
    return panelsOf(thing, data, shown, panels).map((panel) => ({ ...drawn, ...idsOf(thing), panel }));
  };
  const exact = (row) => row.m?.[0] === row.m?.[1] && row.n?.[0] === row.n?.[1] && row.m && row.n;
  const misses = shown.problems.filter((problem) => problem.missed);
  const answered = shown.problems.filter((problem) => !problem.missed).sort((one, other) => one.regret - other.regret);
  const points = colour === "regret" && data.problems.length;
  const models = data.tables.map((_, table) => !data.rows.some((row) => row.table === table));
  const asked = data.tables.flatMap((_, table) => shown.asked.map((each) => ({ ...each, table, template: null, gain: null, regret: null })));
  return [
    ...shown.rows.flatMap((row) => (points ? shape(row, "outline") : shape(row, exact(row) ? "point" : "area"))),
    ...answered.filter(({ table }) => points || models[table]).flatMap((problem) => shape(problem, "point")),
    ...misses.flatMap((problem) => shape(problem, "miss")),
    ...asked.flatMap((each) => shape(each, each.now[each.table] === null ? "lacking" : "asked")),
  ];
}

const coverageSpec = (data, shown, options, axes = { n: "N", m: "M" }) => (values, width) => {
  const panels = new Set(values.map(({ panel }) => panel)).size;
  const most = Math.max(1, Math.min(panels, Math.floor(width / 260)));
  const columns = data.tables.length > 1 && most > 1 ? most - (most % 2) : most;
  const spacing = 18;
  const inner = Math.floor((width - AXES - (columns - 1) * spacing) / columns);
  const axis = (size, [first, last]) => ({
    title: axes[size], values: Array.from({ length: 16 }, (_, number) => 2 * number), labelFlush: false,
    labelExpr: `datum.value % ${last - first > 12 ? 4 : 2} === 0 ? format(pow(2, datum.value), 'd') : ''`,
  });
  const along = (field, size) => {
    const domain = domainOf(shown, size);
    return { field, type: "quantitative", scale: { domain, nice: false, zero: false }, axis: axis(size, domain) };
  };
  const layer = (form, mark, encoding) => ({ mark, encoding, transform: [{ filter: `datum.form === '${form}'` }] });
  const box = { x: along("x", "n"), x2: { field: "x2" }, y: along("y", "m"), y2: { field: "y2" } };
  const centre = { x: along("cx", "n"), y: along("cy", "m") };
  const colour = { field: "colour", type: "nominal", scale: null };
  const border = { stroke: chosenOr(style("--text"), { expr: "datum.colour" }), strokeWidth: chosenOr(2.5, 0.8) };
  const kernels = Object.entries(data.ops).flatMap(([op, { variant }]) => ["", ...variant].map((each) => kernelName({ op, variant: each })));
  const names = [...(options.panels === "kind" ? data.kinds.map((kind) => nameOf(data, kind)) : BANDS.map(bandName)), ...kernels];
  const titles = names.flatMap((name) => data.tables.map((_, table) => panelName(data, name, table)));
  return {
    data: { values },
    facet: {
      field: "panel", type: "ordinal", title: null, sort: titles,
      header: { labelExpr: "split(datum.value, ' · ')", labelLimit: inner + AXES },
    },
    columns,
    spacing,
    resolve: { axis: { x: "independent" } },
    spec: {
      width: inner,
      height: Math.round(Math.min(400, inner * 0.75)),
      layer: [
        layer("area", { type: "rect", clip: true, fillOpacity: 0.45 }, { ...box, fill: colour, ...border }),
        layer("outline", { type: "rect", clip: true, fillOpacity: 0.06 }, { ...box, fill: { value: style("--muted") }, stroke: chosenOr(style("--text"), style("--line")), strokeWidth: chosenOr(2.5, 0.8) }),
        layer("point", { type: "point", filled: true, clip: true, size: 34, opacity: 1 }, { ...centre, fill: colour, stroke: chosenOr(style("--text"), style("--surface")), strokeWidth: chosenOr(2.5, 0.6) }),
        layer("miss", { type: "point", shape: "cross", clip: true, size: 30, filled: true, color: style("--text") }, centre),
        layer("asked", { type: "point", shape: "diamond", clip: true, size: 70, filled: false, color: style("--text"), strokeWidth: 1.2 }, centre),
        layer("lacking", { type: "point", shape: "diamond", clip: true, size: 70, filled: true, color: style("--warning") }, centre),
      ],
    },
  };
};

// Winning templates, and gain, time and regret by size of the problem.

const FIT = { type: "fit", contains: "padding" };

// Multiplications and additions of a problem, or the elements of a generated kernel. Those of attention are without its mask.
function operationsOf(data, { op, b, m, n, k, h, v, x, y, r }) {
  if (isGenerated(data, op)) return x * y * r;
  if (isOf(data, op, "grouped")) return 2 * m * n * k;
  if (!isOf(data, op, "attention")) return 2 * b * m * n * k;
  return b * h * m * n * (op === "flex_attention_backward" ? 2 * (3 * k + 2 * v) : 2 * (k + v));
}

// The operations of the problem in the middle of a row's ranges, or null for a range without an end.
function operations(data, thing, op) {
  const sizes = sizesOf(data, op);
  const middles = ALL_SIZES.map((size) => {
    const range = rangeOf(thing, size) ?? (sizes.includes(size) && op !== null ? null : [1, 1]);
    return [size, range === null || range[1] === UNLIMITED ? null : Math.sqrt(range[0] * range[1])];
  });
  return middles.some(([, middle]) => middle === null) ? null : operationsOf(data, { op, ...Object.fromEntries(middles) });
}

function pointsOf(data, shown) {
  const things = data.problems.length ? shown.problems : shown.rows;
  return things
    .map((thing) => ({
      ...idsOf(thing),
      gain: thing.gain,
      regret: thing.regret,
      time: thing.ns ? thing.ns / 1000 : null,
      operations: operations(data, thing, data.kinds[thing.kinds[0]].op),
      colour: colourOf("template", SCALES.template.classOf(thing)),
    }))
    .filter((point) => point.operations !== null);
}

function pointSpec(points, y, rule, width) {
  const format = "~s";
  return {
    width,
    height: 300,
    autosize: FIT,
    layer: [
      ...(rule === null ? [] : [{ data: { values: [{ rule }] }, mark: { type: "rule", color: style("--muted"), strokeDash: [4, 3] }, encoding: { y: { field: "rule", type: "quantitative" } } }]),
      {
        data: { values: points },
        mark: { type: "point", filled: true, size: 26, opacity: 0.75 },
        encoding: {
          x: { field: "operations", type: "quantitative", scale: { type: "log" }, axis: { title: "floating-point operations", format, tickCount: Math.floor(width / 70) } },
          y,
          fill: { field: "colour", type: "nominal", scale: null },
          stroke: chosenOr(style("--text"), style("--surface")),
          strokeWidth: chosenOr(2.5, 0.3),
        },
      },
    ],
  };
}

const gainsSpec = (data) => (points, width) => {
  const scale = { type: "log", base: 2, nice: false, padding: 6 };
  const y = { field: "gain", type: "quantitative", scale, axis: { title: `times as fast as ${usualOfAll(data)}`, format: "~g", values: [0.25, 0.5, 0.7, 0.85, 1, 1.2, 1.5, 2, 3, 4, 6, 8, 16, 32, 64] } };
  return pointSpec(points, y, 1, width);
};

function regretsSpec(points, width) {
  const y = { field: "regret", type: "quantitative", axis: { title: "slower than the best measured", format: ".1~%", tickCount: 6 } };
  return pointSpec(points, y, 0.02, width);
}

function timesSpec(points, width) {
  const y = { field: "time", type: "quantitative", scale: { type: "log", nice: false, padding: 6 }, axis: { title: "microseconds", format: "~s", tickCount: 6 } };
  return pointSpec(points, y, null, width);
}

function winsOf(data, shown) {
  const things = data.problems.length ? shown.problems : shown.rows;
  const wins = new Map();
  for (const thing of things) {
    for (const kind of thing.kinds.filter((kind) => shown.kinds[kind])) {
      const key = `${kind} ${thing.template}`;
      const win = wins.get(key) ?? { kind, name: nameOf(data, data.kinds[kind]), order: SCALES.template.classOf(thing), count: 0 };
      wins.set(key, { ...win, count: win.count + 1, colour: colourOf("template", win.order) });
    }
  }
  return [...wins.values()];
}

const templatesSpec = (data) => (values, width) => {
  const title = data.problems.length ? "problems" : "rows";
  const names = data.kinds.map((kind) => nameOf(data, kind));
  return {
    data: { values },
    width,
    height: 24 * new Set(values.map(({ name }) => name)).size + 50,
    autosize: FIT,
    mark: { type: "bar", cursor: "pointer", height: { band: 0.75 } },
    encoding: {
      y: { field: "name", type: "nominal", sort: names, axis: { title: null, labelLimit: Math.min(240, width / 3), ticks: false, domain: false } },
      x: { field: "count", type: "quantitative", axis: { title, tickMinStep: 1, tickCount: Math.floor(width / 90) } },
      fill: { field: "colour", type: "nominal", scale: null },
      order: { field: "order" },
    },
  };
};

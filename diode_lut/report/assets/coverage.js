// What rows cover, M by N: rectangles for ranges, points for exact sizes. Along both axes are powers of two.

const UNLIMITED = 2 ** 31 - 1;
const THIN = 0.12; // A range of one size is still a line
const AXES = 96; // Pixels beside the panels
const BANDS = [[1, 64], [65, 256], [257, 1024], [1025, 4096], [4097, 16384], [16385, Infinity]];

const bandName = ([low, high]) => (high === Infinity ? `K over ${count(low - 1)}` : `K ${count(low)} to ${count(high)}`);

// From which power of two to which an axis goes.
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

// Where there are two tables, each has panels of its own.
const panelName = (data, name, table) => (data.tables.length === 1 ? name : `${name} · ${data.tables[table]}`);

function panelsOf(thing, data, shown, by) {
  const kinds = () => thing.kinds.filter((kind) => shown.kinds[kind]).map((kind) => nameOf(data.kinds[kind]));
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

const coverageSpec = (data, shown, options) => (values, width) => {
  const panels = new Set(values.map(({ panel }) => panel)).size;
  const most = Math.max(1, Math.min(panels, Math.floor(width / 260)));
  const columns = data.tables.length > 1 && most > 1 ? most - (most % 2) : most;
  const spacing = 18;
  const inner = Math.floor((width - AXES - (columns - 1) * spacing) / columns);
  const axis = (size, [first, last]) => ({
    title: size.toUpperCase(), values: Array.from({ length: 16 }, (_, number) => 2 * number), labelFlush: false,
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
  const names = options.panels === "kind" ? data.kinds.map(nameOf) : BANDS.map(bandName);
  const titles = names.flatMap((name) => data.tables.map((_, table) => panelName(data, name, table)));
  return {
    data: { values },
    facet: { field: "panel", type: "ordinal", title: null, sort: titles },
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

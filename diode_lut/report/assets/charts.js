// Which template wins, and gain and regret by size of the problem.

const FIT = { type: "fit", contains: "padding" };

// Multiplications and additions of a problem; of attention, without its mask.
function operationsOf(data, { op, b, m, n, k, h, v }) {
  if (data.ops[op ?? "mm"].grouped) return 2 * m * n * k;
  if (!data.ops[op ?? "mm"].attention) return 2 * b * m * n * k;
  return b * h * m * n * (op === "flex_attention_backward" ? 2 * (3 * k + 2 * v) : 2 * (k + v));
}

// Of a row: the operations of the problem in the middle of its ranges; null if it has no end.
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
      const win = wins.get(key) ?? { kind, name: nameOf(data.kinds[kind]), order: SCALES.template.classOf(thing), count: 0 };
      wins.set(key, { ...win, count: win.count + 1, colour: colourOf("template", win.order) });
    }
  }
  return [...wins.values()];
}

const templatesSpec = (data) => (values, width) => {
  const title = data.problems.length ? "problems" : "rows";
  const names = data.kinds.map(nameOf);
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

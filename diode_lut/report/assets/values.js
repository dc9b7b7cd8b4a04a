// Values as text, elements, filters and colours.

// The content of elements is text, whatever it looks like.

const counted = new Intl.NumberFormat("en");

const count = (number) => counted.format(number);
const factor = (gain) => (gain === null ? "unknown" : gain.toFixed(3));
const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "unknown");
const percent = (fraction) => (fraction === null ? "unknown" : `${(100 * fraction).toFixed(2)} %`);
const microseconds = (ns) => (ns === null ? "unknown" : `${(ns / 1000).toPrecision(3)} µs`);
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

const sizesOf = (data, op) => (op === null ? ["b", "m", "n", "k"] : data.ops[op].sizes);

// The baseline of gains: the library, or Inductor's own kernel.
const usualOf = (data, op) => data.ops[op ?? "mm"].usual;

// The baselines of all problems, or of all rows if there are no problems.
function usualOfAll(data) {
  const things = data.problems.length ? data.problems : data.kinds;
  return [...new Set(things.map(({ op }) => usualOf(data, op)))].sort().join(" or ") || usualOf(data, null);
}

// Whether an op is of a family: attention, grouped matmuls, generated kernels, or the matmuls that a row without an op is for.
const isOf = (data, op, family) => op !== null && data.ops[op].family === family;
const isGenerated = (data, op) => isOf(data, op, "generated");

const nameOf = (data, { op, dtype, layout }) => (isGenerated(data, op) ? op : [op ?? "any op", dtype ?? "any type", layout ?? "any layout"].join(" "));

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function geometricMean(factors) {
  const logarithms = factors.filter((factor) => factor !== null).map(Math.log);
  return logarithms.length ? Math.exp(logarithms.reduce((sum, each) => sum + each, 0) / logarithms.length) : null;
}

const largest = (values) => values.reduce((most, value) => (value !== null && (most === null || value > most) ? value : most), null);

// Filters: the rows and problems to show.

const KIND_FIELDS = ["op", "dtype", "layout"];
const SIZES = ["m", "n", "k"];
const ALL_SIZES = ["b", "m", "n", "k", "h", "g", "v", "x", "y", "r", "loads"];

// Number rows and problems, to find them again.
function numbered(data) {
  const rows = data.rows.map((row, number) => ({ ...row, row: number, problem: null }));
  const asked = data.asked.map((each, number) => ({ ...each, asked: number, row: null, problem: null }));
  return { ...data, rows, problems: data.problems.map((problem, number) => ({ ...problem, problem: number })), asked };
}

const idsOf = ({ row, problem, asked = null }) => ({ row, problem, asked });

function fillFilters(form, { kinds, rows, problems, asked }) {
  for (const field of KIND_FIELDS) {
    const values = [...new Set(kinds.map((kind) => kind[field]))].filter((value) => value !== null);
    form.elements[field].append(element("option", { value: "" }, "all"), ...values.map((value) => element("option", { value }, value)));
  }
  const variants = [...new Set([...rows, ...problems, ...asked].map(({ variant }) => variant))].filter(Boolean).sort();
  form.elements.variant.append(element("option", { value: "" }, "all"), ...variants.map((value) => element("option", { value }, value)));
  form.elements.variant.parentElement.hidden = !variants.length;
  for (const input of form.querySelectorAll("input")) Object.assign(input, { type: "number", min: 1, step: 1 });
}

function readFilters(form) {
  const { elements } = form;
  const size = (name, otherwise) => elements[name].valueAsNumber || otherwise;
  return {
    ...Object.fromEntries([...KIND_FIELDS, "variant"].map((field) => [field, elements[field].value])),
    ...Object.fromEntries(SIZES.map((name) => [name, [size(`${name}-low`, 1), size(`${name}-high`, Infinity)]])),
  };
}

function clearFilters(form) {
  for (const field of form.querySelectorAll("select, input")) field.value = "";
}

function chooseKind(form, kind) {
  for (const field of KIND_FIELDS) form.elements[field].value = kind[field] ?? "";
}

const overlap = (range, [low, high]) => range === null || (range[0] <= high && low <= range[1]);

// A size of a row is a range, a size of a problem a number.
const rangeOf = (thing, size) => (typeof thing[size] === "number" ? [thing[size], thing[size]] : thing[size]);

// A row without a variant is for all variants of its op. A row without an op is for matmuls.
function hasVariant(data, { op, variant }, wanted) {
  if (variant !== null || !wanted) return !wanted || variant === wanted;
  return Object.values(op === null ? data.ops : { op: data.ops[op] }).some((each) => (op !== null || each.family === "matmul") && each.variant.includes(wanted));
}

function matching(data, filters) {
  const kinds = data.kinds.map((kind) => KIND_FIELDS.every((field) => !filters[field] || [null, filters[field]].includes(kind[field])));
  const matches = (thing) => hasVariant(data, thing, filters.variant) && thing.kinds.some((kind) => kinds[kind]) && SIZES.every((size) => overlap(rangeOf(thing, size), filters[size]));
  return { kinds, filters, rows: data.rows.filter(matches), problems: data.problems.filter(matches), asked: data.asked.filter(matches) };
}

// Colours: the labels and classes of each scale. The style sheet has the colours, which colour-blind people can tell apart.

const below = (limits, value) => (value === null ? limits.length + 1 : limits.filter((limit) => value >= limit).length);

const SCALES = {
  template: {
    labels: [], // all templates, which come with the data
    classOf: (thing) => SCALES.template.labels.indexOf(thing.template),
  },
  gain: {
    labels: ["slower by over 3 %", "within 3 %", "1.03–1.1", "1.1–1.25", "1.25–1.5", "1.5–2", "over 2", "unknown"],
    classOf: (thing) => below([1 / 1.03, 1.03, 1.1, 1.25, 1.5, 2], thing.gain),
  },
  regret: {
    labels: [], // those of evaluate, which come with the data
    limits: [],
    classOf: (thing) => (thing.regret === null ? SCALES.regret.limits.length + 1 : SCALES.regret.limits.filter((limit) => thing.regret > limit).length),
  },
};

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = (scale, number) => style(`--${scale}-${number}`);

function fillLegend(list, scale, things) {
  const present = new Set(things.map(SCALES[scale].classOf));
  const item = (label, number) => {
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = colourOf(scale, number);
    return element("li", {}, swatch, label);
  };
  list.replaceChildren(...SCALES[scale].labels.map(item).filter((_, number) => present.has(number)));
}

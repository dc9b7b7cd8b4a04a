// What a problem gets that somebody types: the row that answers, its kernel, and about how long that takes.

const BYTES = { float16: 2, bfloat16: 2, float32: 4, tf32: 4, float8_e4m3fn: 1, float8_e5m2: 1, int8: 1 };
const UNITS = { "": 1, k: 2 ** 10, m: 2 ** 20 };
const FAR = 4; // Powers of two, over all sizes together, beyond which a measured problem says nothing
const CHOSEN_FIELDS = [...KIND_FIELDS, "variant"];

// 1024, 1_024 or 1k; null for anything else.
function sizeOf(text) {
  const found = /^(\d[\d_]*)([km]?)$/i.exec(text.trim());
  const size = found ? Number(found[1].replaceAll("_", "")) * UNITS[found[2].toLowerCase()] : 0;
  return size >= 1 && size <= UNLIMITED ? size : null;
}

// 16 if every row of packed operands starts on a boundary of 16 bytes, else 2.
function alignOf(data, { op, dtype, layout, b, m, n, k, v }) {
  const unit = 16 / BYTES[dtype];
  if (data.ops[op].attention) return k % unit || v % unit ? 2 : 16;
  const packed = ([rows, columns]) => (rows === 1 || columns === 1 || columns % unit === 0) && (b === 1 || (rows * columns) % unit === 0);
  return [layout[0] === "n" ? [m, k] : [k, m], layout[1] === "n" ? [k, n] : [n, k]].every(packed) ? 16 : 2;
}

// The problem in the form; null if it is none. Left out, B, H and G are 1, and V is K.
function readAsked(data, form) {
  const value = (name) => form.elements[`ask-${name}`].value;
  const kind = Object.fromEntries(CHOSEN_FIELDS.map((field) => [field, value(field)]));
  const otherwise = { b: "1", h: "1", g: "1", v: value("k") };
  const known = sizesOf(data, kind.op);
  const sizes = Object.fromEntries(ALL_SIZES.map((name) => [name, known.includes(name) ? sizeOf(value(name) || (otherwise[name] ?? "")) : 1]));
  const problem = { ...kind, ...sizes, epilogue: "none" };
  return Object.values(sizes).includes(null) || sizes.h % sizes.g ? null : { ...problem, align: alignOf(data, problem) };
}

// 16 if every row of a packed result starts on a 16-byte boundary, else 2; rows of a table may be for one of both only.
const nAlignOf = (data, { op, dtype, n }) => (data.ops[op].attention || data.ops[op].grouped || BYTES[dtype] === 1 || (n * BYTES[dtype]) % 16 === 0 ? 16 : 2);

const SAME = [...CHOSEN_FIELDS, "align", "epilogue"];
const isFor = (data, row, { op }) => row.op === op || (row.op === null && !data.ops[op].attention && !data.ops[op].grouped);
const covers = (data, row, problem) =>
  SAME.every((field) => [null, problem[field]].includes(row[field])) &&
  [null, nAlignOf(data, problem)].includes(row.n_align) &&
  ALL_SIZES.every((size) => overlap(row[size], [problem[size], problem[size]]));

// The bytes of all operands and results.
function bytesOf(data, { op, dtype, variant, b, m, n, k, h, g, v }) {
  if (data.ops[op].attention) return BYTES[dtype] * b * (k + v) * (h * m + (h / g) * n) * (op === "flex_attention_backward" ? 2 : 1);
  if (data.ops[op].grouped) return BYTES[dtype] * (m * (k + n) + b * k * n);
  const result = BYTES[dtype] > 1 ? BYTES[dtype] : variant.includes("float32") ? 4 : 2;
  return b * (BYTES[dtype] * (m * k + k * n) + result * m * n);
}

// The time in nanoseconds that the device needs at least; of float8 it multiplies twice as much.
function leastTime(data, problem) {
  const { half, tf32, single, memory_bytes: memory } = data.peaks;
  const peak = { float16: half, bfloat16: half, tf32, float32: single }[problem.dtype] ?? 2 * half;
  return Math.max(operationsOf(data, problem) / peak, bytesOf(data, problem) / memory);
}

// The measured problems of a table.
const anchorsOf = (data, table) => data.problems.filter((problem) => problem.ns !== null && problem.table === table);

function distance(one, other) {
  return ALL_SIZES.reduce((sum, size) => sum + Math.abs(Math.log2(one[size] / other[size])), 0);
}

// The expected time as text, with what it is taken from.
function expectation(data, problem, table) {
  const alike = anchorsOf(data, table).filter((anchor) => SAME.every((field) => anchor[field] === problem[field]));
  const nearest = alike.map((anchor) => ({ anchor, far: distance(anchor, problem) })).sort((one, other) => one.far - other.far)[0];
  if (nearest?.far === 0) return `${microseconds(nearest.anchor.ns)}, as measured`;
  if (!nearest || nearest.far > FAR || data.peaks === null) return "unknown: nothing like it was measured";
  const scale = leastTime(data, problem) / leastTime(data, nearest.anchor);
  return `about ${microseconds(scale * nearest.anchor.ns)}, from ${nearest.anchor.name}`;
}

function answerInWords(data, problem, table) {
  const row = data.rows.findLast((each) => each.table === table && isFor(data, each, problem) && covers(data, each, problem));
  if (!row) return [element("dl", {}, ...fact("answered by", "no row: a model, or Inductor, decides")), ...askElsewhere(data, problem)];
  const facts = [fact("answered by", row.key), fact("kernel", row.configs[0].config)];
  facts.push(fact("gain", row.gain === null ? "unknown" : factor(row.gain)), fact("expected", expectation(data, problem, table)));
  const choose = () => showDetails(data, idsOf(row), true);
  return [element("dl", {}, ...facts.flat()), element("button", { type: "button", onclick: choose }, "Show the row")];
}

const OPTIONS = { b: "batch", h: "heads", g: "group", v: "value-dim" };

// The command that asks all tables and models, for the device of this page or for one table or model of it.
function askElsewhere(data, problem, table) {
  const { op, m, n, k, dtype, layout, variant } = problem;
  const sizes = sizesOf(data, op).filter((size) => size in OPTIONS).map((size) => ` --${OPTIONS[size]} ${problem[size]}`);
  const kind = [` --dtype ${dtype} --layout ${layout}`, variant && ` --variant ${variant}`];
  const where = table === undefined ? ` --hardware ${quoted(data.device)}` : ` --table ${named(data.tables[table])}`;
  const command = [`diode-lut explain ${op} ${m} ${n} ${k}`, ...sizes, ...kind, where].join("");
  return [element("p", {}, "To ask on a command line: ", element("code", {}, command))];
}

function answersInWords(data, problem) {
  return data.tables.map((name, table) => {
    const title = data.tables.length === 1 ? [] : [element("h3", {}, name)];
    const inWords = isModel(data, table) ? modelInWords : answerInWords;
    return element("div", {}, ...title, ...inWords(data, problem, table));
  });
}

// Shows the sizes that the op has, and leaves what its problems have to be chosen.
function fitAsked(data, form) {
  const op = form.elements["ask-op"].value;
  for (const size of ALL_SIZES) form.elements[`ask-${size}`].parentElement.hidden = !sizesOf(data, op).includes(size);
  for (const field of ["dtype", "layout", "variant"]) {
    const select = form.elements[`ask-${field}`];
    const known = data.ops[op][field];
    for (const option of select.options) option.hidden = option.disabled = !known.includes(option.value);
    if (!known.includes(select.value)) select.value = known[0];
    select.parentElement.hidden = known[0] === "";
  }
}

function fillAsked(data, form, place) {
  fitAsked(data, form);
  const typed = SIZES.some((name) => form.elements[`ask-${name}`].value);
  const problem = readAsked(data, form);
  const models = data.tables.some((_, table) => isModel(data, table)) ? ` ${NOT_IN_BROWSER}` : "";
  const groups = data.ops[form.elements["ask-op"].value].attention ? " G, the heads that share keys, divides H; V is K if it is left out." : "";
  const hint = typed ? `M, N and K are sizes such as 4096 or 4k.${groups}` : `Type M, N and K to see which row answers.${models}`;
  place.replaceChildren(...(problem ? answersInWords(data, problem) : [element("p", { className: "hint" }, hint)]));
}

function fillAskForm(form, data) {
  const fill = (field, values) => form.elements[`ask-${field}`].append(...values.map((value) => element("option", { value }, value)));
  fill("op", Object.keys(data.ops));
  for (const field of ["dtype", "layout", "variant"]) fill(field, [...new Set(Object.values(data.ops).flatMap((op) => op[field]))]);
  for (const field of KIND_FIELDS) {
    const first = data.kinds.find((kind) => kind[field] !== null);
    if (first) form.elements[`ask-${field}`].value = first[field];
  }
}

// What a GEMM gets that somebody types: the row that answers, its kernel, and about how long that takes.

// Types of the GEMMs that can be typed; of scaled_mm a variant would be needed as well.
const BYTES = { float16: 2, bfloat16: 2, float32: 4, tf32: 4 };
const UNITS = { "": 1, k: 2 ** 10, m: 2 ** 20 };
const FAR = 4; // Powers of two, over all sizes together, beyond which a measured GEMM says nothing

const hasBatch = (op) => ["bmm", "baddbmm"].includes(op);

// 1024, 1_024 or 1k; null for anything else.
function sizeOf(text) {
  const found = /^(\d[\d_]*)([km]?)$/i.exec(text.trim());
  const size = found ? Number(found[1].replaceAll("_", "")) * UNITS[found[2].toLowerCase()] : 0;
  return size >= 1 && size <= UNLIMITED ? size : null;
}

// 16 if every row of packed A and B starts on a boundary of 16 bytes, else 2.
function alignOf({ dtype, layout, b, m, n, k }) {
  const unit = 16 / BYTES[dtype];
  const packed = ([rows, columns]) => (rows === 1 || columns === 1 || columns % unit === 0) && (b === 1 || (rows * columns) % unit === 0);
  return [layout[0] === "n" ? [m, k] : [k, m], layout[1] === "n" ? [k, n] : [n, k]].every(packed) ? 16 : 2;
}

function readAsked(form) {
  const value = (name) => form.elements[`ask-${name}`].value;
  const sizes = Object.fromEntries(["m", "n", "k"].map((name) => [name, sizeOf(value(name))]));
  const kind = Object.fromEntries(KIND_FIELDS.map((field) => [field, value(field)]));
  const problem = { ...kind, ...sizes, b: hasBatch(kind.op) ? sizeOf(value("b") || "1") : 1, epilogue: "none" };
  return [problem.b, ...Object.values(sizes)].includes(null) ? null : { ...problem, align: alignOf(problem) };
}

const SAME = [...KIND_FIELDS, "align", "epilogue"];
const covers = (row, problem) => SAME.every((field) => [null, problem[field]].includes(row[field])) && ["b", "m", "n", "k"].every((size) => overlap(row[size], [problem[size], problem[size]]));

// The time in nanoseconds that the device needs at least.
function leastTime(peaks, { dtype, b, m, n, k }) {
  const peak = { float16: peaks.half, bfloat16: peaks.half, tf32: peaks.tf32, float32: peaks.single }[dtype];
  return Math.max((2 * b * m * n * k) / peak, (BYTES[dtype] * b * (m * k + k * n + m * n)) / peaks.memory_bytes);
}

// GEMMs of which a time is known: measured problems, and those at which a row's aten was measured.
function anchorsOf(data, table) {
  const here = (thing) => thing.table === table;
  const measured = data.problems.filter(({ ns }) => ns !== null).filter(here).map((problem) => ({ ...problem, measured: true }));
  const rows = data.rows.filter(({ aten, gain }) => aten !== null && gain !== null).filter(here);
  return [...measured, ...rows.map((row) => ({ ...row, ...row.aten, ns: row.aten.ns / row.gain, name: `${row.key}, whose aten took ${microseconds(row.aten.ns)}` }))];
}

function distance(one, other) {
  return ["b", "m", "n", "k"].reduce((sum, size) => sum + Math.abs(Math.log2(one[size] / other[size])), 0);
}

// The expected time as text, with what it is taken from.
function expectation(data, problem, table) {
  const alike = anchorsOf(data, table).filter((anchor) => SAME.every((field) => anchor[field] === problem[field] || (field === "epilogue" && anchor[field] === null)));
  const nearest = alike.map((anchor) => ({ anchor, far: distance(anchor, problem) })).sort((one, other) => one.far - other.far)[0];
  if (nearest?.far === 0 && nearest.anchor.measured) return `${microseconds(nearest.anchor.ns)}, as measured`;
  if (!nearest || nearest.far > FAR || data.peaks === null) return "unknown: nothing like it was measured";
  const scale = leastTime(data.peaks, problem) / leastTime(data.peaks, nearest.anchor);
  return `about ${microseconds(scale * nearest.anchor.ns)}, from ${nearest.anchor.name}`;
}

function answerInWords(data, problem, table) {
  const row = data.rows.findLast((each) => each.table === table && covers(each, problem));
  if (!row) return [element("dl", {}, ...fact("answered by", "no row: a model, or Inductor, decides")), ...askElsewhere(data, problem)];
  const facts = [fact("answered by", row.key), fact("kernel", row.configs[0].config)];
  facts.push(fact("gain", row.gain === null ? "unknown" : factor(row.gain)), fact("expected", expectation(data, problem, table)));
  const choose = () => showDetails(data, idsOf(row), true);
  return [element("dl", {}, ...facts.flat()), element("button", { type: "button", onclick: choose }, "Show the row")];
}

// The command that asks all tables and models, for the device of this page or for one table or model of it.
function askElsewhere(data, { op, b, m, n, k, dtype, layout }, table) {
  const batch = hasBatch(op) ? ` --batch ${b}` : "";
  const where = table === undefined ? ` --hardware ${quoted(data.device)}` : ` --table ${quoted(data.tables[table])}`;
  return [element("p", {}, "To ask on a command line: ", element("code", {}, `diode-lut explain ${op} ${m} ${n} ${k}${batch} --dtype ${dtype} --layout ${layout}${where}`))];
}

const ONLY_MEASURED = "A model does not run in a browser, so this page has its answers only for the measured GEMMs and those of receipts.";

// A model answers here only for what was measured or asked for, because it does not run in a browser.
function modelInWords(data, problem, table) {
  const same = (thing) => SAME.every((field) => thing[field] === problem[field]) && distance(thing, problem) === 0;
  const measured = data.problems.find((thing) => thing.table === table && same(thing));
  if (measured) return [element("dl", {}, ...fact("kernel", measured.missed ? "abstains" : measured.choice), ...fact("expected", `${microseconds(measured.ns)}, as measured`))];
  const asked = data.asked.find(same);
  if (asked) return [element("dl", {}, ...fact("kernel", asked.now[table] ?? "abstains"))];
  return [element("p", {}, ONLY_MEASURED), ...askElsewhere(data, problem, table)];
}

const isModel = (data, table) => !data.rows.some((row) => row.table === table);

function answersInWords(data, problem) {
  return data.tables.map((name, table) => {
    const title = data.tables.length === 1 ? [] : [element("h3", {}, name)];
    const inWords = isModel(data, table) ? modelInWords : answerInWords;
    return element("div", {}, ...title, ...inWords(data, problem, table));
  });
}

function fillAsked(data, form, place) {
  const typed = ["m", "n", "k"].some((name) => form.elements[`ask-${name}`].value);
  const problem = readAsked(form);
  form.elements["ask-b"].parentElement.hidden = !hasBatch(form.elements["ask-op"].value);
  const models = data.tables.some((_, table) => isModel(data, table)) ? ` ${ONLY_MEASURED}` : "";
  const hint = typed ? "M, N and K are sizes such as 4096 or 4k." : `Type M, N and K to see which row answers.${models}`;
  place.replaceChildren(...(problem ? answersInWords(data, problem) : [element("p", { className: "hint" }, hint)]));
}

function fillAskForm(form, names, kinds) {
  for (const field of KIND_FIELDS) {
    const select = form.elements[`ask-${field}`];
    const known = names[field].filter((value) => field !== "dtype" || value in BYTES).filter((value) => value !== "scaled_mm");
    select.append(...known.map((value) => element("option", { value }, value)));
    select.value = kinds.find((kind) => known.includes(kind[field]))?.[field] ?? known[0];
  }
}

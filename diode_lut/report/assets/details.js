// Details of a row, and answers for a problem in the form.

// The row under the pointer stays after a click.

const details = { row: null, problem: null, asked: null, pinned: false };

function showDetails(data, { row, problem, asked = null }, pin) {
  if (details.pinned && !pin) return;
  Object.assign(details, { row, problem, asked, pinned: pin });
  const panel = document.getElementById("details");
  const measured = problem === null ? [] : [problemInWords(data, data.problems[problem])];
  const calls = asked === null ? [] : [askedInWords(data, data.asked[asked])];
  const answer = row === null ? [] : [rowInWords(data, data.rows[row])];
  const close = element("button", { type: "button", className: "close", ariaLabel: "Close", onclick: () => hideDetails() }, "×");
  panel.replaceChildren(...calls, ...measured, ...answer, ...(pin ? [close] : []));
  panel.classList.add("open");
  panel.classList.toggle("pinned", pin);
  markChosen(row ?? -1);
}

function hideDetails() {
  Object.assign(details, { row: null, problem: null, asked: null, pinned: false });
  const panel = document.getElementById("details");
  panel.classList.remove("open", "pinned");
  panel.replaceChildren(element("p", { className: "hint" }, "Point at a shape to see its row here; a click keeps it."));
  markChosen(-1);
}

const fact = (name, value) => [element("dt", {}, name), element("dd", {}, value)];

function problemInWords(data, problem) {
  const usual = usualOf(data, problem.op);
  const facts = [
    fact("gets", problem.missed ? `no row covers it: ${usual}` : problem.choice),
    fact("takes", microseconds(problem.ns)),
    fact("gain", `${factor(problem.gain)} of ${factor(problem.best_gain)} possible`),
    fact("regret", problem.regret === null ? "its time was not measured" : percent(problem.regret)),
    fact("best", `${problem.best}, ${microseconds(problem.best_ns)}`),
    fact(usual, microseconds(problem.baseline_ns)),
  ];
  return element("section", {}, element("p", { className: "eyebrow" }, "Problem"), element("h3", {}, problem.name), element("dl", {}, ...facts.flat()));
}

function askedInWords(data, asked) {
  const now = data.tables.flatMap((name, table) => fact(data.tables.length === 1 ? "now" : name, asked.now[table] ?? "no answer"));
  const facts = [...fact("calls", count(asked.calls)), ...fact("then", asked.answer ? `answered by ${asked.answer}` : "missed"), ...now];
  return element("section", {}, element("p", { className: "eyebrow" }, "Asked for"), element("h3", {}, asked.name), element("dl", {}, ...facts));
}

function rowInWords(data, row) {
  const config = ({ config, gain }) => element("li", {}, element("code", {}, config), gain === null ? "" : ` ${factor(gain)}`);
  const regret = `${percent(row.regret)} on average, ${percent(row.worst)} at worst`;
  const facts = [
    ...(row.gain === null ? [] : fact("gain", factor(row.gain))),
    ...(row.regret === null ? [] : fact("regret", regret)),
    ...(row.measured === null ? [] : fact("problems", count(row.measured))),
    ...(row.note === null ? [] : fact("note", row.note)),
  ];
  return element(
    "section", {},
    element("p", { className: "eyebrow" }, data.tables.length === 1 ? "Row" : `Row of ${data.tables[row.table]}`),
    element("h3", {}, row.key),
    element("ol", { className: "configs" }, ...row.configs.map(config)),
    element("dl", {}, ...facts),
    linkTo(data, row, `${data.tables[row.table]}, line ${row.line}`),
    element("p", { className: "command" }, element("code", {}, setCommand(data, row))),
    copyButton(setCommand(data, row)),
  );
}

// Quote a word of a command as as_command() in errors.py does.
const quoted = (text) => {
  if (/^[\w@%+=:,./-]+$/.test(text)) return text;
  if (!/(?! )[\p{C}\p{Z}]/u.test(text)) return `'${text.replaceAll("'", `'"'"'`)}'`;
  const octets = (letter) => [...new TextEncoder().encode(letter)].map((octet) => `\\x${octet.toString(16).padStart(2, "0")}`).join("");
  return `$'${text.replace(/(?! )[\p{C}\p{Z}]|['\\]/gu, octets)}'`;
};

// Quote the name of a file, so that it is never taken for an option.
const named = (name) => quoted(name.startsWith("-") ? `./${name}` : name);

// The command to write the row, for changes in a shell.
function setCommand(data, row) {
  const sizes = sizesOf(data, row.op).filter((size) => row[size] !== null);
  const range = ([low, high]) => (low === high ? `${low}` : `${low}-${high}`);
  const fields = ["dtype", "layout", "epilogue", "variant"].filter((field) => row[field] !== null);
  const options = [
    ...sizes.map((size) => `--${size} ${range(row[size])}`),
    ...fields.map((field) => `--${field} ${row[field]}`),
    `--align ${row.align ?? "any"}`,
    ...row.configs.map(({ config }) => `--config ${quoted(config)}`),
    `--note ${quoted(row.note ?? "why")}`,
  ];
  return ["diode-lut set", named(data.tables[row.table]), row.op ?? "any", ...options].join(" ");
}

function copyButton(text) {
  const button = element("button", { type: "button" }, "Copy as set command");
  button.onclick = () => navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Select the command above to copy it"; });
  return button;
}

const linkTo = (data, row, text) => (row.line === null ? "" : element("a", { href: `${data.links[row.table]}#L${row.line}` }, text));

// A model does not run here, so its answers to the form are looked up.

const NOT_IN_BROWSER = "A model does not run in a browser: this page has its answers for measured problems, for those of receipts and, where all rows are aligned, near powers of two.";
const ROUNDING = 1e-9;

// The place of the nearest size in the grid, or -1 beyond half way to the next size.
function placeAmong(sizes, size) {
  const far = sizes.map((each) => Math.abs(Math.log2(each / size)));
  const place = far.indexOf(Math.min(...far));
  return far[place] <= Math.log2(sizes[1] / sizes[0]) / 2 + ROUNDING ? place : -1;
}

// The model's answer at the nearest sizes in the grid, or null if there are none or it does not rank there.
function nearestAnswer(data, problem) {
  const part = data.grid?.kinds.find((kind) => KIND_FIELDS.every((field) => kind[field] === problem[field]));
  if (!part || problem.align !== 16 || nAlignOf(data, problem) !== 16) return null;
  const names = Object.keys(part.sizes);
  const places = names.map((name) => placeAmong(part.sizes[name], problem[name]));
  const index = names.reduce((sum, name, number) => sum * part.sizes[name].length + places[number], 0);
  if (places.includes(-1) || part.gains[index] === null) return null;
  const sizes = names.map((name, number) => part.sizes[name][places[number]]);
  const exact = names.every((name, number) => sizes[number] === problem[name]);
  return { sizes, exact, config: data.grid.configs[part.answers[index]] ?? null, gain: part.gains[index] / 1000 };
}

function nearestInWords({ sizes, exact, config, gain }) {
  const whose = config === null ? " of its first config, which it is not sure of" : "";
  return element("dl", {},
    ...fact("answer for", `${sizes.join(" x ")}${exact ? "" : ", the nearest that the model was asked: it may answer otherwise for the sizes typed"}`),
    ...fact("kernel", config ?? "abstains"),
    ...fact("gain", `${factor(gain)} over aten${whose}: the model's estimate, not a measurement`));
}

// The answer of a model: for a measured problem, a problem of a receipt, or the nearest sizes in the grid.
function modelInWords(data, problem, table) {
  const same = (thing) => SAME.every((field) => thing[field] === problem[field]) && distance(thing, problem) === 0;
  const measured = data.problems.find((thing) => thing.table === table && same(thing));
  if (measured) return [element("dl", {}, ...fact("kernel", measured.missed ? "abstains" : measured.choice), ...fact("expected", `${microseconds(measured.ns)}, as measured`))];
  const asked = data.asked.find(same);
  if (asked) return [element("dl", {}, ...fact("kernel", asked.now[table] ?? "abstains"))];
  const nearest = nearestAnswer(data, problem);
  return [nearest ? nearestInWords(nearest) : element("p", {}, NOT_IN_BROWSER), ...askElsewhere(data, problem, table)];
}

const isModel = (data, table) => !data.rows.some((row) => row.table === table);

// The form: the row with the answer for a problem, its kernel, and about how long it takes.

const BYTES = { float16: 2, bfloat16: 2, float32: 4, tf32: 4, float8_e4m3fn: 1, float8_e5m2: 1, int8: 1 };
const UNITS = { "": 1, k: 2 ** 10, m: 2 ** 20 };
const FAR = 4; // Powers of two, over all sizes together, beyond which a measured problem says nothing
const CHOSEN_FIELDS = [...KIND_FIELDS, "variant"];

// Read 1024, 1_024 or 1k. Anything else is null.
function sizeOf(text) {
  const found = /^(\d[\d_]*)([km]?)$/i.exec(text.trim());
  const size = found ? Number(found[1].replaceAll("_", "")) * UNITS[found[2].toLowerCase()] : 0;
  return size >= 1 && size <= UNLIMITED ? size : null;
}

// 16 if every row of packed operands starts on a boundary of 16 bytes, else 2.
function alignOf(data, { op, dtype, layout, b, m, n, k, v }) {
  if (isGenerated(data, op)) return 16;
  const unit = 16 / BYTES[dtype];
  if (isOf(data, op, "attention")) return k % unit || v % unit ? 2 : 16;
  const packed = ([rows, columns]) => (rows === 1 || columns === 1 || columns % unit === 0) && (b === 1 || (rows * columns) % unit === 0);
  return [layout[0] === "n" ? [m, k] : [k, m], layout[1] === "n" ? [k, n] : [n, k]].every(packed) ? 16 : 2;
}

// The sizes to type. A flat kernel has a single row.
const sizesToType = (data, { op, variant }) => sizesOf(data, op).filter((size) => size !== "y" || variant !== "flat");

// Read the problem in the form, or null. By default B, H, G and loads are 1, and V is K.
function readAsked(data, form) {
  const value = (name) => form.elements[`ask-${name}`].value;
  const kind = Object.fromEntries(CHOSEN_FIELDS.map((field) => [field, value(field)]));
  const otherwise = { b: "1", h: "1", g: "1", v: value("k"), loads: "1" };
  const known = sizesToType(data, kind);
  const sizes = Object.fromEntries(ALL_SIZES.map((name) => [name, known.includes(name) ? sizeOf(value(name) || (otherwise[name] ?? "")) : 1]));
  const problem = { ...kind, ...sizes, epilogue: "none" };
  return Object.values(sizes).includes(null) || sizes.h % sizes.g ? null : { ...problem, align: alignOf(data, problem) };
}

// 16 if every row of a packed result starts on a 16-byte boundary, else 2. Rows of a table may be for problems with one of these.
const nAlignOf = (data, { op, dtype, n }) => (!isOf(data, op, "matmul") || BYTES[dtype] === 1 || (n * BYTES[dtype]) % 16 === 0 ? 16 : 2);

const SAME = [...CHOSEN_FIELDS, "align", "epilogue"];
const isFor = (data, row, { op }) => row.op === op || (row.op === null && isOf(data, op, "matmul"));
const covers = (data, row, problem) =>
  SAME.every((field) => [null, problem[field]].includes(row[field])) &&
  [null, nAlignOf(data, problem)].includes(row.n_align) &&
  ALL_SIZES.every((size) => overlap(row[size], [problem[size], problem[size]]));

// The bytes of all operands and results.
function bytesOf(data, { op, dtype, variant, b, m, n, k, h, g, v }) {
  if (isGenerated(data, op)) return 0;
  if (isOf(data, op, "attention")) return BYTES[dtype] * b * (k + v) * (h * m + (h / g) * n) * (op === "flex_attention_backward" ? 2 : 1);
  if (isOf(data, op, "grouped")) return BYTES[dtype] * (m * (k + n) + b * k * n);
  const result = BYTES[dtype] > 1 ? BYTES[dtype] : variant.includes("float32") ? 4 : 2;
  return b * (BYTES[dtype] * (m * k + k * n) + result * m * n);
}

// The least time on the device in nanoseconds. It multiplies float8 twice as fast.
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

// The expected time as text, with its origin.
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

// The command to ask all tables and models, for the device of this page or for a table or model of it.
function askElsewhere(data, problem, table) {
  const { op, m, n, k, dtype, layout, variant } = problem;
  const generated = isGenerated(data, op);
  const sizes = sizesToType(data, problem).filter((size) => generated || size in OPTIONS).map((size) => ` --${OPTIONS[size] ?? size} ${problem[size]}`);
  const kind = [generated ? "" : ` --dtype ${dtype} --layout ${layout}`, variant && ` --variant ${variant}`];
  const where = table === undefined ? ` --hardware ${quoted(data.device)}` : ` --table ${named(data.tables[table])}`;
  const command = [`diode-lut explain ${op}${generated ? "" : ` ${m} ${n} ${k}`}`, ...sizes, ...kind, where].join("");
  return [element("p", {}, "To ask on a command line: ", element("code", {}, command))];
}

function answersInWords(data, problem) {
  return data.tables.map((name, table) => {
    const title = data.tables.length === 1 ? [] : [element("h3", {}, name)];
    const inWords = isModel(data, table) ? modelInWords : answerInWords;
    return element("div", {}, ...title, ...inWords(data, problem, table));
  });
}

// Show the sizes of the op, and offer only values of its problems.
function fitAsked(data, form) {
  const op = form.elements["ask-op"].value;
  for (const field of ["dtype", "layout", "variant"]) {
    const select = form.elements[`ask-${field}`];
    const known = data.ops[op][field];
    for (const option of select.options) option.hidden = option.disabled = !known.includes(option.value);
    if (!known.includes(select.value)) select.value = known[0];
    select.parentElement.hidden = known[0] === "";
  }
  const sizes = sizesToType(data, { op, variant: form.elements["ask-variant"].value });
  for (const size of ALL_SIZES) form.elements[`ask-${size}`].parentElement.hidden = !sizes.includes(size);
  return sizes;
}

function fillAsked(data, form, place) {
  const needed = fitAsked(data, form).filter((size) => !form.elements[`ask-${size}`].placeholder);
  const typed = needed.some((name) => form.elements[`ask-${name}`].value);
  const names = needed.map((size) => size.toUpperCase()).join(", ").replace(/, (?=\w+$)/, " and ");
  const problem = readAsked(data, form);
  const models = data.tables.some((_, table) => isModel(data, table)) ? ` ${NOT_IN_BROWSER}` : "";
  const groups = isOf(data, form.elements["ask-op"].value, "attention") ? " G, the heads that share keys, divides H; V is K if it is left out." : "";
  const hint = typed ? `${names} ${needed.length > 1 ? "are sizes" : "is a size"} such as 4096 or 4k.${groups}` : `Type ${names} to see which row answers.${models}`;
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

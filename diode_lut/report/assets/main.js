// The list of rows, the page's address, and the page as a whole.

// Rows are listed some at a time.

const PAGE = 20;

const ORDERS = {
  line: (one, other) => one.line - other.line,
  "regret, largest first": (one, other) => (other.worst ?? -1) - (one.worst ?? -1),
  "gain, largest first": (one, other) => (other.gain ?? -1) - (one.gain ?? -1),
  "gain, smallest first": (one, other) => (one.gain ?? Infinity) - (other.gain ?? Infinity),
};

function rowCells(data, row) {
  const choose = () => showDetails(data, idsOf(row), true);
  const key = element("button", { type: "button", className: "key", onclick: choose }, row.key);
  const cell = (label, ...content) => {
    const made = element("td", {}, ...content);
    made.dataset.label = label;
    return made;
  };
  return element(
    "tr", {},
    cell("Covers", key, ...(row.note === null ? [] : [element("p", { className: "note" }, row.note)])),
    cell("Kernel", element("code", {}, row.configs[0].config)),
    cell("Gain", row.gain === null ? "–" : factor(row.gain)),
    cell("Regret", row.worst === null ? "–" : percent(row.worst)),
    cell("Problems", row.measured === null ? "–" : count(row.measured)),
    cell("Line", linkTo(data, row, String(row.line))),
  );
}

function fillRows(data, rows, order, most) {
  const sorted = [...rows].sort(ORDERS[order]);
  document.querySelector("#rows tbody").replaceChildren(...sorted.slice(0, most).map((row) => rowCells(data, row)));
  document.getElementById("more").hidden = rows.length <= most;
}

// Choices are part of the page's address, so that a link shows the same.

const CONTROLS = "#filters [name], #options [name]:checked, #ask [name], #order";
const keyOf = (control) => control.name || control.id;
const initial = new Map();

function rememberInitial() {
  for (const control of document.querySelectorAll(CONTROLS)) initial.set(keyOf(control), control.value);
}

function saveAddress() {
  const controls = [...document.querySelectorAll(CONTROLS)].filter((control) => control.value !== initial.get(keyOf(control)));
  const chosen = new URLSearchParams(controls.map((control) => [keyOf(control), control.value]));
  history.replaceState(null, "", `#${chosen}`);
}

function loadAddress() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  for (const key of initial.keys()) {
    const value = chosen.get(key) ?? initial.get(key);
    for (const control of document.querySelectorAll(`[name="${key}"], #${key}`)) {
      if (control.type === "radio") control.checked = control.value === value && !control.disabled;
      else control.value = value;
    }
  }
}

// Read the data, and draw all of it again after each choice.

const data = numbered(JSON.parse(document.getElementById("data").textContent));
Object.assign(SCALES.regret, data.classes);
SCALES.template.labels = data.templates;
const ask = document.getElementById("ask");
const filters = document.getElementById("filters");
const options = document.getElementById("options");
const order = document.getElementById("order");
const page = document.querySelector("main");
const hasKernels = data.kinds.some(({ op }) => isGenerated(data, op));
let most = PAGE;
let width = 0;

function fillHead() {
  document.getElementById("name").textContent = data.tables.join(" and ");
  const { torch, triton, measured_on: date } = data.provenance;
  const parts = [data.hardware, torch && `PyTorch ${torch}`, triton && `Triton ${triton}`, date && `measured on ${date}`];
  const named = data.datasets.length > 3 ? plural(data.datasets.length, "dataset") : data.datasets.join(", ");
  parts.push(named && `compared with ${named}`);
  parts.push(data.missing && `without ${plural(data.missing, "dataset")} that the table was built from`);
  document.getElementById("about").textContent = parts.filter(Boolean).join(" · ");
  const invalid = document.getElementById("invalid");
  invalid.hidden = !data.invalid;
  invalid.textContent = `${plural(data.invalid, "row")} of the file left out as invalid: diode-lut check names them.`;
}

// Figures of the shown rows and problems of a table or model, with their names.
function figuresOf({ rows, problems }, table) {
  const here = (things) => things.filter((thing) => thing.table === table);
  const [shown, asked] = [here(problems), here(rows)];
  const measured = shown.map((problem) => problem.regret).filter((regret) => regret !== null);
  const figures = [["rows", `${count(asked.length)} of ${count(here(data.rows).length)}`]];
  if (data.problems.length) {
    figures.push(
      ["problems", `${count(shown.length)} of ${count(here(data.problems).length)}`],
      ["not covered", count(shown.filter((problem) => problem.missed).length)],
      [`gain over ${usualOfAll(data)}`, factor(geometricMean(shown.map((problem) => problem.gain)))],
      ["gain possible", factor(geometricMean(shown.map((problem) => problem.best_gain)))],
      ["largest regret", percent(largest(measured))],
      ...[2, 5].map((limit) => [`within ${limit} %`, share(measured.filter((regret) => regret <= limit / 100).length, measured.length)]),
    );
  }
  return figures;
}

// Say in words what the regrets are, and which answer has the largest.
function regretText(problems) {
  const measured = problems.filter(({ regret }) => regret !== null);
  if (!measured.length) return "";
  const worst = measured.reduce((one, other) => (other.regret > one.regret ? other : one));
  const missing = data.missing ? ` Timings of ${plural(data.missing, "dataset")} that the table was built from are not given; they may have decided otherwise.` : "";
  const whose = data.tables.length > 1 ? ` by ${data.tables[worst.table]}` : "";
  const most = `The largest is of ${worst.name}${whose}, which takes ${percent(worst.regret)} longer with ${worst.choice} than with ${worst.best}.`;
  return `Regret is how much longer an answer takes than the fastest kernel measured for the same problem. ${worst.regret > 0 ? most : "No answer has any."}${missing}`;
}

function askedFigures(asked) {
  const calls = (things) => things.reduce((sum, thing) => sum + thing.calls, 0);
  const answered = data.tables.map((_, table) => share(calls(asked.filter(({ now }) => now[table] !== null)), calls(asked)));
  return data.asked.length ? [["calls in receipts", count(calls(asked))], ["of them answered", answered.join(" | ")]] : [];
}

function fillFigures(shown) {
  const all = data.tables.map((_, table) => figuresOf(shown, table));
  const figures = all[0].map(([name], number) => [name, all.map((each) => each[number][1]).join(" | ")]);
  const figure = ([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value));
  document.getElementById("figures").replaceChildren(...[...figures, ...askedFigures(shown.asked)].map(figure));
  document.getElementById("figures-hint").textContent = regretText(shown.problems);
}

const point = (datum, pin) => datum.row !== undefined && showDetails(data, datum, pin);
const only = (shown, table) => ({ ...shown, rows: shown.rows.filter((row) => row.table === table), problems: shown.problems.filter((problem) => problem.table === table) });

function choosePanel(datum, pin) {
  if (!pin || datum.kind === undefined) return;
  chooseKind(filters, data.kinds[datum.kind]);
  options.elements.panels.value = "k";
  update();
}

function answer() {
  fillAsked(data, ask, document.getElementById("answer"));
  saveAddress();
}

function update() {
  const shown = matching(data, readFilters(filters));
  const how = { colour: options.elements.colour.value, panels: options.elements.panels.value };
  const charted = only(shown, Number(options.elements.of.value));
  const answers = data.problems.length ? charted.problems : charted.rows;
  fillFigures(shown);
  fillLegend(document.getElementById("legend"), how.colour, how.colour === "regret" ? shown.problems : shown.rows);
  fillLegend(document.getElementById("templates-legend"), "template", answers);
  const points = pointsOf(data, charted);
  const [matmuls, kernels] = [false, true].map((generated) => partOf(data, shown, generated));
  draw("coverage", shapesOf(data, matmuls, how), coverageSpec(data, matmuls, how), point);
  if (hasKernels) draw("kernels", shapesOf(data, kernels, how), coverageSpec(data, kernels, how, { n: "X", m: "R, Y or loads" }), point);
  draw("templates", winsOf(data, charted), templatesSpec(data), choosePanel);
  draw("gains", points.filter(({ gain }) => gain !== null), gainsSpec(data), point);
  draw("times", points.filter(({ time }) => time), timesSpec, point);
  draw("regrets", points.filter(({ regret }) => regret !== null), regretsSpec, point);
  fillRows(data, shown.rows, order.value, most);
  answer();
  page.ariaBusy = "true";
  allDrawn().then(() => { page.ariaBusy = "false"; });
}

function fitInto(now) {
  if (now === 0 || now === width) return;
  width = now;
  update();
}

function fillHints() {
  const hint = (id, text) => { document.getElementById(id).textContent = text; };
  const misses = data.problems.some((problem) => problem.missed) ? " A cross is a measured problem that gets no answer." : "";
  const asked = data.asked.length ? " A diamond is a problem of the receipts; a filled one gets no answer." : "";
  const kernels = hasKernels ? " Kernels that Inductor generates are drawn by X, and by R, Y or loads." : "";
  hint("coverage-hint", `Rectangles are ranges of sizes, points exact ones. What a row leaves open reaches the edge.${kernels}${misses}${asked}`);
  hint("templates-hint", `${data.problems.length ? "Measured problems" : "Rows"} by the first kernel that the table gives. A click on a bar shows its part of the table.`);
  hint("gains-hint", data.problems.length ? "A point for each measured problem." : "A point for each row, in the middle of its ranges.");
  hint("times-hint", data.problems.length ? "Of the table's choice: a point for each measured problem." : "Unknown without a dataset.");
  hint("regrets-hint", data.problems.length ? "A point for each measured problem; the line is at 2 %." : "Unknown without a dataset: diode-lut report TABLE DATASET.");
}

document.getElementById("of").hidden = data.tables.length === 1;
document.getElementById("kernels").hidden = !hasKernels;
data.tables.forEach((name, table) => { document.getElementById(`of-${table}`).textContent = name; });
options.querySelector("[value=regret]").disabled = !data.problems.length;
fillHead();
fillHints();
document.getElementById("gains-title").textContent = `Gain over ${usualOfAll(data)}`;
fillFilters(filters, data);
order.append(...Object.keys(ORDERS).map((name) => element("option", { value: name }, name)));
hideDetails();
fillAskForm(ask, data);
rememberInitial();
loadAddress();

for (const form of [filters, ask]) form.addEventListener("submit", (event) => event.preventDefault());
filters.addEventListener("input", update);
ask.addEventListener("input", answer);
addEventListener("hashchange", () => { loadAddress(); update(); });
document.getElementById("all").addEventListener("click", () => { clearFilters(filters); update(); });
options.addEventListener("change", update);
order.addEventListener("change", update);
document.getElementById("more").addEventListener("click", () => { most += PAGE; update(); });
document.addEventListener("keydown", (event) => event.key === "Escape" && hideDetails());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
new ResizeObserver(([{ contentRect }]) => fitInto(contentRect.width)).observe(page);

// Reads the data, and draws all of it again whenever something is asked for.

const data = numbered(JSON.parse(document.getElementById("data").textContent));
Object.assign(SCALES.regret, data.classes);
const ask = document.getElementById("ask");
const filters = document.getElementById("filters");
const options = document.getElementById("options");
const order = document.getElementById("order");
const page = document.querySelector("main");
let most = PAGE;
let width = 0;

function fillHead() {
  document.getElementById("name").textContent = data.name;
  const { torch, triton, measured_on: date } = data.provenance;
  const parts = [data.hardware, torch && `PyTorch ${torch}`, triton && `Triton ${triton}`, date && `measured on ${date}`];
  parts.push(data.datasets.length && `compared with ${data.datasets.join(", ")}`);
  document.getElementById("about").textContent = parts.filter(Boolean).join(" · ");
  const invalid = document.getElementById("invalid");
  invalid.hidden = !data.invalid;
  invalid.textContent = `${plural(data.invalid, "row")} of the file left out as invalid: diode_lut check names them.`;
}

function fillFigures({ rows, problems }) {
  const measured = problems.map((problem) => problem.regret).filter((regret) => regret !== null);
  const figures = [["rows", `${count(rows.length)} of ${count(data.rows.length)}`]];
  if (data.problems.length) {
    figures.push(
      ["problems", `${count(problems.length)} of ${count(data.problems.length)}`],
      ["not covered", count(problems.filter((problem) => problem.row === null).length)],
      ["gain over aten", factor(geometricMean(problems.map((problem) => problem.gain)))],
      ["gain possible", factor(geometricMean(problems.map((problem) => problem.best_gain)))],
      ["worst regret", percent(largest(measured))],
      ...[2, 5].map((limit) => [`within ${limit} %`, share(measured.filter((regret) => regret <= limit / 100).length, measured.length)]),
    );
  }
  const figure = ([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value));
  document.getElementById("figures").replaceChildren(...figures.map(figure));
}

const point = (datum, pin) => datum.row !== undefined && showDetails(data, datum, pin);

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
  const answers = data.problems.length ? shown.problems : shown.rows;
  fillFigures(shown);
  fillLegend(document.getElementById("legend"), how.colour, how.colour === "regret" ? answers : shown.rows);
  fillLegend(document.getElementById("templates-legend"), "template", answers);
  const points = pointsOf(data, shown);
  draw("coverage", shapesOf(data, shown, how), coverageSpec(data, shown, how), point);
  draw("templates", winsOf(data, shown), templatesSpec(data), choosePanel);
  draw("gains", points.filter(({ gain }) => gain !== null), gainsSpec, point);
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
  const misses = data.problems.some((problem) => problem.row === null) ? " A cross is a measured problem that no row covers." : "";
  hint("coverage-hint", `Rectangles are ranges of sizes, points exact ones. What a row leaves open reaches the edge.${misses}`);
  hint("templates-hint", `${data.problems.length ? "Measured problems" : "Rows"} by the first kernel that the table gives. A click on a bar shows its part of the table.`);
  hint("gains-hint", data.problems.length ? "A point for each measured problem." : "A point for each row, in the middle of its ranges.");
  hint("regrets-hint", data.problems.length ? "A point for each measured problem; the line is at 2 %." : "Unknown without a dataset: diode_lut report TABLE DATASET.");
}

options.querySelector("[value=regret]").disabled = !data.problems.length;
fillHead();
fillHints();
fillFilters(filters, data.kinds);
order.append(...Object.keys(ORDERS).map((name) => element("option", { value: name }, name)));
hideDetails();
fillAskForm(ask, data.names, data.kinds);
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

// The row under the pointer; after a click it stays.

const details = { row: null, problem: null, pinned: false };

function showDetails(data, { row, problem }, pin) {
  if (details.pinned && !pin) return;
  Object.assign(details, { row, problem, pinned: pin });
  const panel = document.getElementById("details");
  const asked = problem === null ? [] : [problemInWords(data.problems[problem])];
  const answer = row === null ? [] : [rowInWords(data, data.rows[row])];
  const close = element("button", { type: "button", className: "close", ariaLabel: "Close", onclick: () => hideDetails() }, "×");
  panel.replaceChildren(...asked, ...answer, ...(pin ? [close] : []));
  panel.classList.add("open");
  panel.classList.toggle("pinned", pin);
  markChosen(row ?? -1);
}

function hideDetails() {
  Object.assign(details, { row: null, problem: null, pinned: false });
  const panel = document.getElementById("details");
  panel.classList.remove("open", "pinned");
  panel.replaceChildren(element("p", { className: "hint" }, "Point at a shape to see its row here; a click keeps it."));
  markChosen(-1);
}

const fact = (name, value) => [element("dt", {}, name), element("dd", {}, value)];

function problemInWords(problem) {
  const facts = [
    fact("gets", problem.row === null ? "no row covers it: aten" : problem.choice),
    fact("gain", `${factor(problem.gain)} of ${factor(problem.best_gain)} possible`),
    fact("regret", problem.regret === null ? "its time was not measured" : percent(problem.regret)),
    fact("best", problem.best),
  ];
  return element("section", {}, element("p", { className: "eyebrow" }, "Problem"), element("h3", {}, problem.name), element("dl", {}, ...facts.flat()));
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
    element("p", { className: "eyebrow" }, "Row"),
    element("h3", {}, row.key),
    element("ol", { className: "configs" }, ...row.configs.map(config)),
    element("dl", {}, ...facts),
    linkTo(data, row, `${data.name}, line ${row.line}`),
  );
}

const linkTo = (data, row, text) => (row.line === null ? "" : element("a", { href: `${data.link}#L${row.line}` }, text));

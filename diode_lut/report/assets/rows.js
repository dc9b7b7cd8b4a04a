// The list of rows, some at a time.

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

// The row under the pointer; after a click it stays.

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

// A word of a command, as as_command() in errors.py has it.
const quoted = (text) => {
  if (/^[\w@%+=:,./-]+$/.test(text)) return text;
  if (!/(?! )[\p{C}\p{Z}]/u.test(text)) return `'${text.replaceAll("'", `'"'"'`)}'`;
  const octets = (letter) => [...new TextEncoder().encode(letter)].map((octet) => `\\x${octet.toString(16).padStart(2, "0")}`).join("");
  return `$'${text.replace(/(?! )[\p{C}\p{Z}]|['\\]/gu, octets)}'`;
};

// The name of a file as a word, which is never taken for an option.
const named = (name) => quoted(name.startsWith("-") ? `./${name}` : name);

// The command that writes the row, to be changed in a shell.
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

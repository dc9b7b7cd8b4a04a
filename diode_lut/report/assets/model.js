// What a model answers to what somebody types. It does not run here, so its answers are looked up.

const NOT_IN_BROWSER = "A model does not run in a browser: this page has its answers for measured problems, for those of receipts and, where all rows are aligned, near powers of two.";
const ROUNDING = 1e-9;

// The place of the nearest size that the model was asked for; -1 if that is further than half way to the next.
function placeAmong(sizes, size) {
  const far = sizes.map((each) => Math.abs(Math.log2(each / size)));
  const place = far.indexOf(Math.min(...far));
  return far[place] <= Math.log2(sizes[1] / sizes[0]) / 2 + ROUNDING ? place : -1;
}

// What the model answers at the nearest sizes that it was asked for; null if there are none, or if it does not rank there.
function nearestAnswer(data, problem) {
  const part = data.grid?.kinds.find((kind) => KIND_FIELDS.every((field) => kind[field] === problem[field]));
  if (!part || problem.align !== 16 || !hasAlignedResult(data, problem)) return null;
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

// A model answers here for what was measured or asked for, else at the nearest sizes that it was asked for.
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

// Which rows and problems are shown.

const KIND_FIELDS = ["op", "dtype", "layout"];
const SIZES = ["m", "n", "k"];
const ALL_SIZES = ["b", "m", "n", "k", "h", "g", "v"];

// Rows and problems get the numbers by which they are found again.
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

// Of a row that is a range, of a problem one number.
const rangeOf = (thing, size) => (typeof thing[size] === "number" ? [thing[size], thing[size]] : thing[size]);

// A row that names no variant is for all that its op has; one that names no op is for GEMMs.
function hasVariant(data, { op, variant }, wanted) {
  if (variant !== null || !wanted) return !wanted || variant === wanted;
  return Object.values(op === null ? data.ops : { op: data.ops[op] }).some((each) => (op !== null || !each.attention) && each.variant.includes(wanted));
}

function matching(data, filters) {
  const kinds = data.kinds.map((kind) => KIND_FIELDS.every((field) => !filters[field] || [null, filters[field]].includes(kind[field])));
  const matches = (thing) => hasVariant(data, thing, filters.variant) && thing.kinds.some((kind) => kinds[kind]) && SIZES.every((size) => overlap(rangeOf(thing, size), filters[size]));
  return { kinds, filters, rows: data.rows.filter(matches), problems: data.problems.filter(matches), asked: data.asked.filter(matches) };
}

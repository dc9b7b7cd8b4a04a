// Numbers as text, and elements whose content is text, whatever it looks like.

const counted = new Intl.NumberFormat("en");

const count = (number) => counted.format(number);
const factor = (gain) => (gain === null ? "unknown" : gain.toFixed(3));
const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "unknown");
const percent = (fraction) => (fraction === null ? "unknown" : `${(100 * fraction).toFixed(2)} %`);
const microseconds = (ns) => (ns === null ? "unknown" : `${(ns / 1000).toPrecision(3)} µs`);
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

const sizesOf = (data, op) => (op === null ? ["b", "m", "n", "k"] : data.ops[op].sizes);

// What gains are over: the library, or the kernel that Inductor takes by itself.
const usualOf = (data, op) => data.ops[op ?? "mm"].usual;

// Of all problems, or of all rows where there are no problems.
function usualOfAll(data) {
  const things = data.problems.length ? data.problems : data.kinds;
  return [...new Set(things.map(({ op }) => usualOf(data, op)))].sort().join(" or ") || usualOf(data, null);
}

const nameOf = (kind) => [kind.op ?? "any op", kind.dtype ?? "any type", kind.layout ?? "any layout"].join(" ");

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function geometricMean(factors) {
  const logarithms = factors.filter((factor) => factor !== null).map(Math.log);
  return logarithms.length ? Math.exp(logarithms.reduce((sum, each) => sum + each, 0) / logarithms.length) : null;
}

const largest = (values) => values.reduce((most, value) => (value !== null && (most === null || value > most) ? value : most), null);

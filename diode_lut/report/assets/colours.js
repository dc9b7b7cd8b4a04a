// The classes that colours stand for, each with the style sheet's name of its colour. They can be told apart by colour-blind people.

const below = (limits, value) => (value === null ? limits.length + 1 : limits.filter((limit) => value >= limit).length);

const SCALES = {
  template: {
    labels: [], // all templates, which come with the data
    classOf: (thing) => SCALES.template.labels.indexOf(thing.template),
  },
  gain: {
    labels: ["slower by over 3 %", "within 3 %", "1.03–1.1", "1.1–1.25", "1.25–1.5", "1.5–2", "over 2", "unknown"],
    classOf: (thing) => below([1 / 1.03, 1.03, 1.1, 1.25, 1.5, 2], thing.gain),
  },
  regret: {
    labels: [], // those of evaluate, which come with the data
    limits: [],
    classOf: (thing) => (thing.regret === null ? SCALES.regret.limits.length + 1 : SCALES.regret.limits.filter((limit) => thing.regret > limit).length),
  },
};

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = (scale, number) => style(`--${scale}-${number}`);

function fillLegend(list, scale, things) {
  const present = new Set(things.map(SCALES[scale].classOf));
  const item = (label, number) => {
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = colourOf(scale, number);
    return element("li", {}, swatch, label);
  };
  list.replaceChildren(...SCALES[scale].labels.map(item).filter((_, number) => present.has(number)));
}

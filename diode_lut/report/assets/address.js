// What is chosen is part of the page's address, so that a link shows the same.

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

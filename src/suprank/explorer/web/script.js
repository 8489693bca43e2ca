// Keyboard shortcuts for a page that works without them: arrows move between images and rows, / searches, ? shows help.
"use strict";

const help = document.getElementById("help");
const search = document.getElementById("search");
const navigable = () => [...document.querySelectorAll("[data-navigable]")];

function typing(target) {
  return target.matches("input:not([type=submit]):not([type=file]), textarea, select") || target.isContentEditable;
}

// The next element in a direction: the previous or next one for left and right, else the closest one in the next row.
function neighbor(from, key, all) {
  const here = from.getBoundingClientRect();
  const at = all.indexOf(from);
  if (key === "ArrowLeft") return all[at - 1];
  if (key === "ArrowRight") return all[at + 1];
  const down = key === "ArrowDown";
  const middle = (box) => box.left + box.width / 2;
  let best;
  for (const other of all) {
    const box = other.getBoundingClientRect();
    const away = down ? box.top - here.top : here.top - box.top;
    if (away < 8) continue;
    const cost = away * 10000 + Math.abs(middle(box) - middle(here));
    if (!best || cost < best.cost) best = { other, cost };
  }
  return best && best.other;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && typing(event.target)) {
    event.target.blur();
    return;
  }
  if (typing(event.target) || (help && help.open)) return;
  if (event.key === "/" && search) {
    search.focus();
    search.select();
  } else if (event.key === "?" && help) {
    help.showModal();
  } else if (event.key.startsWith("Arrow")) {
    const all = navigable();
    if (!all.length) return;
    const now = document.activeElement;
    const next = all.includes(now) ? neighbor(now, event.key, all) : all[0];
    if (!next) return; // at the edge the page scrolls
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  } else if (event.key === "n" || event.key === "p") {
    const link = document.querySelector(event.key === "n" ? "a[rel=next]" : "a[rel=prev]");
    if (!link) return;
    link.click();
  } else {
    return;
  }
  event.preventDefault();
});

// With scripts, the link to the help page opens a dialog instead.
for (const link of document.querySelectorAll("a[href='/help']")) {
  link.addEventListener("click", (event) => {
    if (!help || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    help.showModal();
  });
}

// Filters apply as soon as they are chosen; without scripts there is a button.
for (const form of document.querySelectorAll("form.filters")) {
  form.addEventListener("change", () => form.requestSubmit());
  form.querySelector("button").hidden = true;
}

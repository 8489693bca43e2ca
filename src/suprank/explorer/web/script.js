// Keyboard shortcuts for a page that works without them: arrows move between images and rows, t tags, / searches, ? shows help.
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
  if (typing(event.target) || document.querySelector("dialog[open]")) return;
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
  } else if (event.key === "t") {
    const tile = document.activeElement.closest(".tile");
    const link = tile && tile.querySelector("[data-tag]");
    const field = document.getElementById("tag"); // on the page of an image
    if (link) openTagging(link.dataset.tag, tile);
    else if (field) field.focus();
    else return;
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
  form.addEventListener("formdata", (event) => {
    // Addresses without empty parameters are shorter to send.
    for (const [name, value] of [...event.formData]) if (!value) event.formData.delete(name);
  });
  form.querySelector("button").hidden = true;
}

// Tags of an image in a list, in a dialog; without scripts the link leads to the page of the image.
const tagging = document.getElementById("tagging");

function openTagging(image, tile) {
  tagging.dataset.image = image;
  tagging.querySelector("h2").textContent = `Tags of ${tile.querySelector(".label").textContent}`;
  tagging.querySelector("[role=alert]").textContent = "";
  const shown = document.querySelector(`[data-tags-of="${image}"]`);
  showTags(image, [...shown.querySelectorAll("a")].map((one) => one.textContent));
  tagging.querySelector("input").value = "";
  tagging.returnFocus = tile.querySelector("[data-navigable]");
  tagging.showModal();
  tagging.querySelector("input").focus();
}

function showTags(image, tags) {
  for (const place of document.querySelectorAll(`[data-tags-of="${image}"]`)) {
    place.replaceChildren();
    for (const tag of tags) {
      const link = document.createElement("a");
      link.className = "tag";
      link.href = `/?${new URLSearchParams(place.dataset.side ? { tag, side: place.dataset.side } : { tag })}`;
      link.textContent = tag;
      place.append(link, " ");
    }
  }
  const buttons = tags.map((tag) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `× ${tag}`;
    button.setAttribute("aria-label", `remove the tag ${tag}`);
    button.addEventListener("click", () => changeTag("remove", tag));
    return button;
  });
  tagging.querySelector(".current").replaceChildren(...buttons);
}

async function changeTag(act, tag) {
  const image = tagging.dataset.image;
  let answer;
  try {
    const body = new URLSearchParams({ image, act, tag });
    const response = await fetch("/tags", { method: "POST", headers: { Accept: "application/json" }, body });
    answer = await response.json();
  } catch {
    answer = { problem: "The server does not answer; nothing was saved." };
  }
  if (answer.tags) showTags(image, answer.tags);
  tagging.querySelector("[role=alert]").textContent = answer.problem || "";
  return Boolean(answer.tags);
}

if (tagging) {
  const field = tagging.querySelector("input");
  tagging.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!field.value.trim() || (await changeTag("add", field.value))) tagging.close();
  });
  tagging.querySelector("button[value=close]").addEventListener("click", () => tagging.close());
  tagging.addEventListener("close", () => tagging.returnFocus.focus());
  for (const link of document.querySelectorAll("[data-tag]")) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      openTagging(link.dataset.tag, link.closest(".tile"));
    });
  }
}

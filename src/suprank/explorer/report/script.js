// The maps: a card shows the image and label of the class under the pointer or focus, the arrow keys move from class to class,
// and the legend highlights groups. Without this script the maps are still shown, with labels as tooltips.
"use strict";

const DIRECTIONS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
const FINGER = 22; // pixels

function centerOf(point) {
  const box = point.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
}

// The nearest point in a direction; sideways distance counts twice, so that moving right stays on the line.
function nearestInDirection(points, from, [right, down]) {
  const [x, y] = centerOf(from);
  let best = null;
  let least = Infinity;
  for (const point of points) {
    const [px, py] = centerOf(point);
    const along = (px - x) * right + (py - y) * down;
    const across = Math.abs((px - x) * down) + Math.abs((py - y) * right);
    if (point !== from && along > 0.5 && along + 2 * across < least) {
      best = point;
      least = along + 2 * across;
    }
  }
  return best;
}

// The nearest point that a finger may have meant.
function nearestToTap(points, x, y) {
  let best = null;
  let least = FINGER;
  for (const point of points) {
    const [px, py] = centerOf(point);
    const distance = Math.hypot(px - x, py - y);
    if (distance < least) {
      best = point;
      least = distance;
    }
  }
  return best;
}

function activate(map) {
  const field = map.querySelector(".field");
  const svg = map.querySelector(".points");
  const card = map.querySelector(".card");
  const picture = card.querySelector(".picture");
  const words = card.querySelector(".words");
  const points = [...svg.querySelectorAll("path")];
  if (!points.length) return;
  const isPoint = (element) => element.parentNode === svg;

  function show(point) {
    hide();
    point.classList.add("shown");
    words.textContent = point.getAttribute("aria-label");
    picture.classList.toggle("none", !point.dataset.image);
    if (point.dataset.image) picture.firstElementChild.setAttribute("href", "#" + point.dataset.image);
    card.hidden = false;
    const [x, y] = centerOf(point);
    const box = field.getBoundingClientRect();
    const left = Math.max(4, Math.min(x - box.left + 12, box.width - card.offsetWidth - 8));
    const top = y - box.top + 12;
    card.style.left = field.scrollLeft + left + "px";
    card.style.top = (top + card.offsetHeight > box.height ? Math.max(4, top - card.offsetHeight - 24) : top) + "px";
  }

  function hide() {
    for (const shown of svg.querySelectorAll(".shown")) shown.classList.remove("shown");
    card.hidden = true;
  }

  function makeTabStop(point) {
    for (const other of points) other.setAttribute("tabindex", "-1");
    point.setAttribute("tabindex", "0");
  }

  for (const point of points) {
    const title = point.querySelector("title");
    point.setAttribute("aria-label", title.textContent);
    title.remove(); // the card shows it, and a tooltip would cover the card
  }
  makeTabStop(points[0]);

  svg.addEventListener("pointerover", (event) => isPoint(event.target) && show(event.target));
  svg.addEventListener("pointerout", () => {
    const focused = document.activeElement;
    if (isPoint(focused)) show(focused);
    else hide();
  });
  svg.addEventListener("click", (event) => {
    const point = isPoint(event.target) ? event.target : nearestToTap(points, event.clientX, event.clientY);
    if (point) {
      makeTabStop(point);
      point.focus();
      show(point);
    } else hide();
  });
  svg.addEventListener("focusin", (event) => isPoint(event.target) && show(event.target));
  svg.addEventListener("focusout", hide);
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const direction = DIRECTIONS[event.key];
    if (!direction || !isPoint(event.target)) return;
    event.preventDefault();
    const next = nearestInDirection(points, event.target, direction);
    if (next) {
      makeTabStop(next);
      next.focus();
    }
  });

  const buttons = [...map.querySelectorAll(".legend button")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      const chosen = new Set(
        buttons.filter((one) => one.getAttribute("aria-pressed") === "true").map((one) => one.dataset.group),
      );
      svg.classList.toggle("chosen", chosen.size > 0);
      for (const point of points) point.classList.toggle("chosen", chosen.has(point.dataset.group));
    });
  }
}

for (const map of document.querySelectorAll(".map")) activate(map);

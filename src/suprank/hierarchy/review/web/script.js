// Keyboard shortcuts and conveniences; the pages work without them.
"use strict";

let help, selection, output, rows, boxes;
let here; // the row with keyboard focus
let last; // the row that was selected last, where a range starts
let focusRow = null; // after an action, the row that had the focus, and the path of its page
const field = (id) => document.getElementById(id);

// The selection. Rows of other pages of the same list are remembered while the tab is open, and sent in one hidden field.
// Values of groups are ID:VERSION; a checkbox on this page has the newer version.
let elsewhere, storageKey, ids;

function gather() {
  for (const box of boxes) if (box.checked) ids.add(box.value); else ids.delete(box.value);
}

function show() {
  if (!output) return;
  const all = selection.elements.all;
  let count = boxes.filter((box) => box.checked).length;
  if (elsewhere) {
    gather();
    const onPage = new Set(boxes.map((box) => box.value));
    const off = [...ids].filter((id) => !onPage.has(id));
    elsewhere.value = off.join(" ");
    count = ids.size;
    try {
      sessionStorage.setItem(storageKey, [...ids].join(" "));
    } catch {
      // The storage is full: the selection of this page still counts.
    }
    output.textContent = off.length ? `${count} selected, ${off.length} of them on other pages` : count ? `${count} selected` : "nothing selected";
    if (off.length && !selection.querySelector("[data-none]")) {
      const none = document.createElement("button");
      none.type = "button";
      none.dataset.none = "";
      none.textContent = "clear selection";
      none.addEventListener("click", () => {
        ids.clear();
        for (const box of boxes) box.checked = false;
        none.remove();
        show();
      });
      output.after(none);
    }
  } else {
    output.textContent = count ? `${count} selected` : "nothing selected";
  }
  selection.classList.toggle("idle", !count && !(all && all.checked));
  if (all && all.checked) output.textContent = "all results are selected";
  const whole = document.querySelector("[data-all]");
  if (whole) {
    whole.checked = boxes.length > 0 && boxes.every((box) => box.checked);
    whole.indeterminate = !whole.checked && boxes.some((box) => box.checked);
  }
}

function setUpSelection() {
  elsewhere = selection && selection.querySelector("[data-elsewhere]");
  const parameters = new URLSearchParams(location.search);
  const list = parameters.get(location.pathname.endsWith("/search") ? "q" : "level");
  storageKey = `selection ${location.pathname} ${list || ""}`;
  ids = new Set(elsewhere ? elsewhere.value.split(" ").filter(Boolean) : []);
  if (elsewhere && selection.dataset.selection === "keep") {
    const onPage = new Map(boxes.map((box) => [box.value.split(":")[0], box]));
    for (const id of (sessionStorage.getItem(storageKey) || "").split(" ").filter(Boolean)) {
      const box = onPage.get(id.split(":")[0]);
      if (box) box.checked = true;
      else ids.add(id);
    }
  }
  if (selection) show();
  for (const [at, box] of boxes.entries()) {
    box.addEventListener("click", (event) => {
      if (event.shiftKey && last >= 0) {
        const [from, to] = [Math.min(last, at), Math.max(last, at)];
        for (let one = from; one <= to; one++) boxes[one].checked = box.checked;
      }
      last = at;
      here = at;
      show();
    });
  }
  for (const box of document.querySelectorAll("[data-all]")) {
    box.addEventListener("change", () => {
      for (const one of boxes) one.checked = box.checked;
      show();
    });
  }
  if (selection && selection.elements.all) selection.elements.all.addEventListener("change", show);
}

function toggle(at, ranged) {
  const box = boxes[at];
  if (!box) return;
  const on = ranged ? true : !box.checked;
  const from = ranged && last >= 0 ? Math.min(last, at) : at;
  const to = ranged && last >= 0 ? Math.max(last, at) : at;
  for (let one = from; one <= to; one++) boxes[one].checked = on;
  last = at;
  show();
}

// Text that was typed but not sent is restored when the page is opened again in this tab, so that another action does not lose it.
const typed = () => [...document.querySelectorAll("main input[id]:not([type=checkbox]), main textarea[id]")];
departures.push((sentForm) => {
  const drafts = typed().filter((one) => one.form !== sentForm && one.value !== one.defaultValue);
  sessionStorage.setItem(`drafts ${location.pathname}`, JSON.stringify(drafts.map((one) => [one.id, one.value])));
  focusRow = sentForm && rows[here]?.classList.contains("here") ? [here, location.pathname] : null;
});

pageSetups.push(() => {
  help = field("help");
  selection = field("selection");
  output = field("selected");
  rows = [...document.querySelectorAll("[data-row]")];
  boxes = rows.map((row) => row.querySelector("input[type=checkbox]")).filter(Boolean);
  here = last = -1;
  setUpSelection();
  for (const [id, text] of JSON.parse(sessionStorage.getItem(`drafts ${location.pathname}`) || "[]")) {
    const input = typed().find((one) => one.id === id);
    if (input && input.value === input.defaultValue) input.value = text;
  }
  // After an action, focus returns to the same row, and screen readers announce what was done.
  // After a refusal the page stays at its top, where the message is, and Enter accepts the first offer.
  const message = document.querySelector("#messages .message");
  if (message) setTimeout(() => message.parentElement?.prepend(message), 100);
  if (document.querySelector("#messages .bad")) document.querySelector("[data-offer]")?.focus();
  else if (focusRow?.[1] === location.pathname) {
    move(focusRow[0]);
    if (message && scrollY) message.classList.add("afloat"); // otherwise it is out of sight
  }
  // Enter in a field presses the button beside it, not the first button of the form.
  for (const input of document.querySelectorAll("input[data-act]")) {
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      input.form.requestSubmit(input.form.querySelector(`button[value="${input.dataset.act}"]`));
    });
  }
  // With scripts, the help link opens the shortcuts on this page.
  for (const link of document.querySelectorAll("a[href$='/help']")) {
    link.addEventListener("click", (event) => {
      if (!help || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      help.showModal();
    });
  }
  // A filter is applied when it is chosen; without scripts, and for text, there is a button.
  for (const form of document.querySelectorAll("form.filters")) {
    for (const choice of form.querySelectorAll("select")) choice.addEventListener("change", () => form.requestSubmit());
  }
});

function move(to) {
  if (!rows.length) return;
  if (rows[here]) rows[here].classList.remove("here");
  here = Math.max(0, Math.min(rows.length - 1, to));
  const row = rows[here];
  row.classList.add("here");
  row.tabIndex = -1;
  row.focus({ preventScroll: true });
  // Scroll only if needed, and keep the row clear of the bar at the bottom.
  const box = row.getBoundingClientRect();
  const bottom = innerHeight - (selection ? selection.getBoundingClientRect().height : 0);
  if (box.top < 0 || box.bottom > bottom) row.scrollIntoView({ block: "center", behavior: "instant" });
}

function press(id) {
  const button = field(id);
  if (button && !button.disabled) button.click();
}

function enter(...names) {
  const input = names.map(field).find(Boolean);
  if (!input) return;
  input.focus();
  if (input.select) input.select();
}

const keys = {
  j: () => move(here + 1),
  k: () => move(here - 1),
  ArrowDown: () => move(here + 1),
  ArrowUp: () => move(here - 1),
  x: () => toggle(here, false),
  " ": () => toggle(here, false),
  X: () => toggle(here, true),
  a: () => {
    const on = !boxes.every((box) => box.checked);
    for (const box of boxes) box.checked = on;
    show();
  },
  s: () => enter("split_name"),
  m: () => enter("to", "into"),
  e: () => enter("reason"),
  r: () => enter("name"),
  p: () => enter("parent", "put"),
  d: () => (field("next") ? press("next") : document.querySelector("a[rel=next-open]")?.click()),
  u: () => press("undo"),
  U: () => press("redo"),
  n: () => document.querySelector("a[rel=next-open]")?.click(),
  N: () => document.querySelector("a[rel=prev-open]")?.click(),
  "/": () => enter("search"),
  "?": () => help && help.showModal(),
  Enter: () => rows[here]?.querySelector("[data-open]")?.click(),
};

function typing(target) {
  return target.matches("input:not([type=checkbox]):not([type=submit]), textarea, select") || target.isContentEditable;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  // A key that is held down moves through rows, but does not repeat other actions on each page it leads to.
  if (event.repeat && !typing(event.target) && !["j", "k", "ArrowDown", "ArrowUp"].includes(event.key)) return;
  if (event.key === "Escape" && typing(event.target)) {
    event.target.blur();
    if (rows[here]) rows[here].focus({ preventScroll: true });
    return;
  }
  if (typing(event.target) || (help && help.open) || !keys[event.key]) return;
  // Links, buttons and a focused checkbox handle Enter and the space bar themselves.
  if ((event.key === "Enter" || event.key === " ") && event.target.matches("a, button, summary, input")) return;
  event.preventDefault();
  keys[event.key]();
});

// A reload does not report the last action again.
const address = new URL(location.href);
if (address.searchParams.has("did")) {
  address.searchParams.delete("did");
  history.replaceState(null, "", address);
  pagePath = location.pathname + location.search;
}
for (const setup of pageSetups) setup();

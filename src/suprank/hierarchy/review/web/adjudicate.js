"use strict";
// Shortcuts of the adjudication page beside those of script.js: 1 and 2 press the two buttons of the current row.
(() => {
  const form = document.querySelector("form.adjudicate");
  if (!form) return;
  const current = () => document.querySelector("[data-row].here");

  function count() {
    const selected = form.querySelectorAll("[name=row]:checked").length;
    const output = form.querySelector(".selected-count");
    if (output) output.textContent = selected ? `${selected} selected` : "selected rows";
  }

  document.addEventListener(
    "keydown",
    (event) => {
      if (event.target.matches("input:not([type=checkbox])") || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
      const row = current();
      if (!row) return;
      if (event.key === "1" || event.key === "2") {
        const button = row.querySelector(event.key === "1" ? ".first" : ".second");
        if (!button.disabled) button.click();
      } else if ((event.key === "m" || event.key === "e") && !form.querySelector("[name=row]:checked")) {
        row.querySelector("[name=row]").checked = true; // what is typed next is about the current row
      }
    },
    true,
  );
  document.addEventListener("keyup", count);
  form.addEventListener("change", count);
  count();
})();

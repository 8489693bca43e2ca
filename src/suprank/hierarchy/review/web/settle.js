"use strict";
// What the settling adds to the keys of script.js, which moves among the rows and comes back to them: 1 and 2 press the two buttons of the row.
(() => {
  const form = document.querySelector("form.settle");
  if (!form) return;
  const current = () => document.querySelector("[data-row].here");

  function count() {
    const ticked = form.querySelectorAll("[name=row]:checked").length;
    const told = form.querySelector(".ticks");
    if (told) told.textContent = ticked ? `${ticked} ticked` : "ticked";
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
        row.querySelector("[name=row]").checked = true; // what one goes on to type is for the row one is on
      }
    },
    true,
  );
  document.addEventListener("keyup", count);
  form.addEventListener("change", count);
  count();
})();

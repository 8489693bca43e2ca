// The maps: pan, zoom and search, a card with the image and label of a class, and a legend that highlights groups. A class that
// is found, selected or pointed at on one map is marked on the other. Without this script the page shows a picture of each map.
"use strict";

const MOST_LISTED = 30;

const simplified = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
const plural = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

// What all maps share: the classes, and which of them are found, selected, pointed at, or of a chosen group.
class Atlas {
  constructor(root) {
    this.root = root;
    this.data = JSON.parse(root.querySelector(".map-data").textContent);
    this.number = this.data.classes.name.length;
    this.matches = null;
    this.groups = new Set();
    this.selected = this.pointed = null; // points; the other maps mark their class
    this.withImages = false;
    this.views = [...root.querySelectorAll(".map")].map((map, run) => new View(this, map, this.data.runs[run]));
    for (const part of root.querySelectorAll(".tools, .zoom, .help")) part.hidden = false;
    this.listenToLegend();
    this.listenToSearch();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const view of this.views) view.readColors();
    });
  }

  words(point) {
    const { name, path, count } = this.data.classes;
    const above = this.data.paths[path[point.class]];
    const about = point.single ? "single image" : plural(count[point.class], "image", "images");
    return [name[point.class], [above, about].filter(Boolean).join("\n")];
  }

  emphasized(number) {
    return (!this.matches || this.matches.has(number)) && (!this.groups.size || this.groups.has(this.data.classes.group[number]));
  }

  refresh() {
    for (const view of this.views) view.refresh();
  }

  // Select a point, or nothing; other maps mark the same class.
  select(point, { speak = false } = {}) {
    this.selected = point;
    if (point && speak) this.root.querySelector(".spoken").textContent = this.words(point).join("\n");
    this.refresh();
  }

  goTo(number) {
    const points = this.views.map((view) => view.points.find((point) => point.class === number)).filter(Boolean);
    this.select(points[0], { speak: true });
    for (const view of this.views) view.centerOn(number);
  }

  listenToLegend() {
    for (const button of this.root.querySelectorAll(".legend button")) {
      button.addEventListener("click", () => {
        const group = Number(button.dataset.group);
        if (!this.groups.delete(group)) this.groups.add(group);
        button.setAttribute("aria-pressed", String(this.groups.has(group)));
        this.refresh();
      });
    }
    const images = this.root.querySelector(".show-images");
    images?.addEventListener("click", () => {
      this.withImages = !this.withImages;
      images.setAttribute("aria-pressed", String(this.withImages));
      if (this.selected?.single) this.selected = null;
      this.refresh();
    });
  }

  listenToSearch() {
    const field = this.root.querySelector("input[type=search]");
    const list = this.root.querySelector(".matches");
    const found = this.root.querySelector(".found");
    const { name, path, count } = this.data.classes;
    let texts = null;
    let best = [];
    field.addEventListener("input", () => {
      texts ??= name.map((one, number) => [simplified(one), simplified(this.data.paths[path[number]])]);
      const wanted = simplified(field.value.trim());
      const ranked = [[], [], []]; // names that begin with it, names that contain it, and classes of such a group
      for (let number = 0; wanted && number < this.number; number++) {
        const at = texts[number][0].indexOf(wanted);
        if (at >= 0) ranked[Math.min(at, 1)].push(number);
        else if (texts[number][1].includes(wanted)) ranked[2].push(number);
      }
      const all = ranked.flat();
      best = all.slice(0, MOST_LISTED);
      this.matches = wanted ? new Set(all) : null;
      list.replaceChildren(...best.map((number) => this.result(number, count[number])));
      list.hidden = !best.length;
      found.textContent = wanted ? plural(all.length, "class matches.", "classes match.") : "";
      if (all.length > best.length) found.textContent += ` The first ${best.length} are listed.`;
      this.refresh();
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && best.length) this.goTo(best[0]);
    });
  }

  result(number, count) {
    const { name, path } = this.data.classes;
    const item = document.createElement("li");
    const button = document.createElement("button");
    const about = document.createElement("span");
    button.type = "button";
    button.textContent = name[number];
    about.className = "quiet";
    about.textContent = [this.data.paths[path[number]], plural(count, "image", "images")].filter(Boolean).join(" · ");
    button.append(" ", about);
    button.addEventListener("click", () => this.goTo(number));
    item.append(button);
    return item;
  }
}

for (const root of document.querySelectorAll(".maps")) new Atlas(root);

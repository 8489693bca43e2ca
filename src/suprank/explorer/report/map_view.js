// The map of one run on a canvas: drawing, moving, and what the mouse, fingers and keys do. script.js makes one for each run.
"use strict";

const DIRECTIONS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
const REACH = { touch: 22, mouse: 10 }; // pixels between a point and where it is meant
const DRAG = 5; // pixels from which a press is not a click
const MOST_NAMED = 60; // names of classes are drawn where at most so many are in view
const DEEPEST = 60; // zoom

function canvasContext(side) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  return canvas.getContext("2d", { willReadFrequently: true });
}

class View {
  constructor(atlas, map, run) {
    this.atlas = atlas;
    this.map = map;
    this.field = map.querySelector(".field");
    this.canvas = map.querySelector("canvas");
    this.card = map.querySelector(".card");
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    const [width, height, steps] = atlas.data.size;
    Object.assign(this, { width, height });
    const { classes, images } = run;
    this.points = [];
    for (let number = 0; number < classes.x.length; number++) {
      if (classes.x[number] === null) continue;
      const image = atlas.data.classes.image[number];
      this.points.push({ x: classes.x[number] / steps, y: classes.y[number] / steps, class: number, image, single: false });
    }
    this.singles = images.x.map((x, at) => ({
      x: x / steps,
      y: images.y[at] / steps,
      class: images.class[at],
      image: images.image[at],
      single: true,
    }));
    this.pointers = new Map();
    this.sprites = new Map();
    this.showWhole();
    map.classList.add("live");
    this.canvas.hidden = false;
    this.readColors();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  readColors() {
    const style = getComputedStyle(this.field);
    this.colors = { panel: style.backgroundColor, text: style.color };
    for (const path of this.map.querySelectorAll(".points path")) this.colors[path.dataset.group] = getComputedStyle(path).color;
    const context = canvasContext(1);
    context.fillStyle = this.colors.panel;
    context.fillRect(0, 0, 1, 1);
    [this.background] = new Uint32Array(context.getImageData(0, 0, 1, 1).data.buffer);
    this.sprites.clear();
    this.refresh();
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.ratio = ratio;
    this.boxWidth = this.canvas.clientWidth;
    this.boxHeight = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.boxWidth * ratio);
    this.canvas.height = Math.round(this.boxHeight * ratio);
    if (!this.boxWidth) return;
    this.pixels = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixelWords = new Uint32Array(this.pixels.data.buffer);
    this.sprites.clear();
    this.draw(); // at once, since a canvas is blank after a change of its size
  }

  // Pixels per unit of the map.
  get scale() {
    return this.zoom * Math.min(this.boxWidth / this.width, this.boxHeight / this.height);
  }

  get size() {
    const base = Math.min(8, Math.max(2, 9 - 1.1 * Math.log2(this.points.length / 16)));
    return Math.min(9, Math.max(1.6, base * this.scale ** 0.5));
  }

  onScreen({ x, y }) {
    const scale = this.scale;
    return [(x - this.x) * scale + this.boxWidth / 2, (y - this.y) * scale + this.boxHeight / 2];
  }

  get shownPoints() {
    return this.atlas.withImages ? [...this.points, ...this.singles] : this.points;
  }

  refresh() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    if (!this.boxWidth || !this.ratio) return;
    const { context, atlas, boxWidth, boxHeight } = this;
    const [scale, size] = [this.scale, this.size];
    this.pixelWords.fill(this.background);
    const named = [];
    const faintFirst = atlas.matches || atlas.groups.size ? [false, true] : [null];
    for (const wanted of faintFirst) {
      for (const point of this.shownPoints) {
        const x = (point.x - this.x) * scale + boxWidth / 2;
        const y = (point.y - this.y) * scale + boxHeight / 2;
        if (x < -size || y < -size || x > boxWidth + size || y > boxHeight + size) continue;
        if (wanted !== null && atlas.emphasized(point.class) !== wanted) continue;
        this.stamp(this.sprite(atlas.data.classes.group[point.class], size, point.single), x, y, wanted === false ? 0.15 : 1);
        if (!point.single && wanted !== false) named.push([point, x, y]);
      }
    }
    context.putImageData(this.pixels, 0, 0);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    if (named.length <= MOST_NAMED) this.drawNames(named, size);
    for (const marked of new Set([atlas.selected, atlas.pointed])) this.drawRing(marked, size);
    this.placeCard();
  }

  // The pixels of a group's mark, drawn once. Copying pixels takes a tenth of the time of drawing shapes or images: 11,316 marks
  // take 10 ms on a busy core without a GPU.
  sprite(group, size, hollow) {
    const key = `${group}/${size.toFixed(1)}/${hollow}`;
    if (!this.sprites.has(key)) {
      const side = Math.ceil((2.8 * size + 2) * this.ratio);
      const context = canvasContext(side);
      const scale = (this.ratio * size) / 5; // shapes are of size 5
      context.translate(side / 2, side / 2);
      context.scale(scale, scale);
      const path = new Path2D(this.atlas.data.shapes[group]);
      context.fillStyle = this.colors[hollow ? "panel" : group];
      context.fill(path);
      context.strokeStyle = this.colors[hollow ? group : "panel"];
      context.lineWidth = (hollow ? 1.3 : 0.6) * (this.ratio / scale);
      context.stroke(path);
      const pixels = context.getImageData(0, 0, side, side).data;
      this.sprites.set(key, { side, pixels, words: new Uint32Array(pixels.buffer) });
    }
    return this.sprites.get(key);
  }

  // Blend a mark with what is there already, which is opaque.
  stamp({ side, pixels, words }, x, y, opacity) {
    const { width, height, data } = this.pixels;
    const [left, top] = [Math.round(x * this.ratio - side / 2), Math.round(y * this.ratio - side / 2)];
    const [firstColumn, lastColumn] = [Math.max(0, -left), Math.min(side, width - left)];
    const lastRow = Math.min(side, height - top);
    for (let row = Math.max(0, -top); row < lastRow; row++) {
      for (let column = firstColumn; column < lastColumn; column++) {
        const from = row * side + column;
        const to = (top + row) * width + left + column;
        const share = (pixels[4 * from + 3] * opacity) / 255;
        if (share === 1) this.pixelWords[to] = words[from];
        else if (share) {
          for (let channel = 0; channel < 3; channel++)
            data[4 * to + channel] += (pixels[4 * from + channel] - data[4 * to + channel]) * share;
        }
      }
    }
  }

  drawNames(named, size) {
    const { context, colors } = this;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    const taken = [];
    for (const [point, x, y] of named) {
      const full = this.atlas.data.classes.name[point.class];
      const name = full.length > 28 ? full.slice(0, 27) + "…" : full;
      const left = x + size + 6;
      const right = left + context.measureText(name).width;
      if (taken.some((one) => left < one.right && right > one.left && Math.abs(y - one.y) < 14)) continue;
      taken.push({ left, right, y });
      context.strokeStyle = colors.panel;
      context.lineWidth = 3;
      context.strokeText(name, left, y);
      context.fillStyle = colors.text;
      context.fillText(name, left, y);
    }
  }

  drawRing(marked, size) {
    const point = this.ownPoint(marked);
    if (!point) return;
    const [x, y] = this.onScreen(point);
    this.context.strokeStyle = this.colors.text;
    this.context.lineWidth = marked === this.atlas.selected ? 2.5 : 1.5;
    this.context.beginPath();
    this.context.arc(x, y, size + 4, 0, 2 * Math.PI);
    this.context.stroke();
  }

  // The point itself, or for a point of another map that of its class.
  ownPoint(point) {
    if (!point) return null;
    const own = point.single ? this.singles : this.points;
    return own.includes(point) ? point : this.points.find((one) => one.class === point.class);
  }

  placeCard() {
    const { selected, pointed } = this.atlas;
    const point = this.ownPoint(this.shownPoints.includes(pointed) ? pointed : selected);
    const [x, y] = point ? this.onScreen(point) : [-1, -1];
    this.card.hidden = x < 0 || y < 0 || x > this.boxWidth || y > this.boxHeight;
    if (this.card.hidden) return;
    if (this.card.point !== point) {
      this.card.point = point;
      const [name, about] = this.card.querySelector(".words").children;
      [name.textContent, about.textContent] = this.atlas.words(point);
      const picture = this.card.querySelector(".picture");
      picture.classList.toggle("none", point.image === null);
      if (point.image !== null) picture.firstElementChild.setAttribute("href", "#i" + point.image);
    }
    const left = Math.max(4, Math.min(x + 12, this.boxWidth - this.card.offsetWidth - 4));
    const below = y + 14 + this.card.offsetHeight < this.boxHeight;
    this.card.style.left = left + "px";
    this.card.style.top = (below ? y + 14 : Math.max(4, y - 14 - this.card.offsetHeight)) + "px";
  }

  // Moving

  setView(x, y, zoom) {
    this.zoom = Math.min(DEEPEST, Math.max(1, zoom));
    this.x = Math.min(this.width, Math.max(0, x));
    this.y = Math.min(this.height, Math.max(0, y));
    this.canvas.style.touchAction = this.zoom > 1 ? "none" : "pan-y"; // a finger on the whole map scrolls the page
    this.refresh();
  }

  showWhole() {
    this.setView(this.width / 2, this.height / 2, 1);
  }

  panBy(right, down) {
    this.setView(this.x - right / this.scale, this.y - down / this.scale, this.zoom);
  }

  // Zoom so that what is at this position of the canvas stays there.
  zoomAt(px, py, factor) {
    const before = this.scale;
    const [dx, dy] = [px - this.boxWidth / 2, py - this.boxHeight / 2];
    const zoom = Math.min(DEEPEST, Math.max(1, this.zoom * factor));
    if (zoom === 1) return this.showWhole();
    const after = (before * zoom) / this.zoom;
    this.setView(this.x + dx / before - dx / after, this.y + dy / before - dy / after, zoom);
  }

  centerOn(number) {
    const point = this.points.find((one) => one.class === number);
    const close = Math.min(DEEPEST / 2, Math.sqrt(this.points.length / MOST_NAMED));
    if (point) this.setView(point.x, point.y, Math.max(this.zoom, close));
  }

  nearest(px, py, reach) {
    let best = null;
    let least = reach;
    for (const point of this.shownPoints) {
      const [x, y] = this.onScreen(point);
      const distance = Math.hypot(x - px, y - py);
      if (distance < least) {
        best = point;
        least = distance;
      }
    }
    return best;
  }

  // The nearest point in a direction; sideways distance counts twice, so that moving right stays on the line.
  nearestInDirection(from, [right, down]) {
    let best = null;
    let least = Infinity;
    for (const point of this.shownPoints) {
      const [dx, dy] = [point.x - from.x, point.y - from.y];
      const along = dx * right + dy * down;
      const cost = along + 2 * (Math.abs(dx * down) + Math.abs(dy * right));
      if (point !== from && along > 0 && cost < least) {
        best = point;
        least = cost;
      }
    }
    return best;
  }

  // Events

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", (event) => this.cancel(event));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    for (const button of this.map.querySelectorAll("[data-zoom]")) {
      const factor = { in: 1.6, out: 1 / 1.6 }[button.dataset.zoom];
      button.addEventListener("click", () =>
        factor ? this.zoomAt(this.boxWidth / 2, this.boxHeight / 2, factor) : this.showWhole(),
      );
    }
  }

  point(point) {
    if (this.atlas.pointed === point) return;
    this.atlas.pointed = point;
    this.atlas.refresh();
  }

  press(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    this.travel = this.pointers.size > 1 ? Infinity : 0;
  }

  move(event) {
    const last = this.pointers.get(event.pointerId);
    const [x, y] = [event.offsetX, event.offsetY];
    if (!last) return this.point(this.nearest(x, y, REACH.mouse));
    this.travel += Math.hypot(x - last.x, y - last.y);
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
    if (others.length) {
      const [[, other]] = others;
      const apart = Math.hypot(x - other.x, y - other.y) / Math.max(1, Math.hypot(last.x - other.x, last.y - other.y));
      this.zoomAt((x + other.x) / 2, (y + other.y) / 2, apart);
      this.panBy((x - last.x) / 2, (y - last.y) / 2);
    } else if (this.travel > DRAG) {
      this.point(null);
      this.canvas.classList.add("dragged");
      this.panBy(x - last.x, y - last.y);
    }
    this.pointers.set(event.pointerId, { x, y });
  }

  cancel(event) {
    this.canvas.classList.remove("dragged");
    return this.pointers.delete(event.pointerId);
  }

  release(event) {
    if (this.cancel(event) && this.travel <= DRAG)
      this.atlas.select(this.nearest(event.offsetX, event.offsetY, REACH[event.pointerType] ?? REACH.mouse));
  }

  // The wheel scrolls the page until the map is clicked, and again where it can zoom out no further.
  wheel(event) {
    const outward = event.deltaY > 0;
    if ((document.activeElement !== this.canvas && !event.ctrlKey && !event.metaKey) || (outward && this.zoom === 1)) return;
    event.preventDefault();
    this.zoomAt(event.offsetX, event.offsetY, Math.exp(-Math.max(-100, Math.min(100, event.deltaY)) / 300));
  }

  key(event) {
    const direction = DIRECTIONS[event.key];
    const center = [this.boxWidth / 2, this.boxHeight / 2];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") this.atlas.select(null);
    else if (event.key === "+" || event.key === "=") this.zoomAt(...center, 1.6);
    else if (event.key === "-") this.zoomAt(...center, 1 / 1.6);
    else if (event.key === "0") this.showWhole();
    else if (direction && event.shiftKey) this.panBy(-0.3 * center[0] * direction[0], -0.3 * center[1] * direction[1]);
    else if (direction) this.step(direction);
    else return;
    event.preventDefault();
  }

  // Select the next class in a direction, or the one at the center if none is selected, and move it into view.
  step(direction) {
    const from = this.ownPoint(this.atlas.selected);
    const next = from ? this.nearestInDirection(from, direction) : this.nearest(this.boxWidth / 2, this.boxHeight / 2, Infinity);
    if (!next) return;
    this.atlas.select(next, { speak: true });
    const [x, y] = this.onScreen(next);
    if (x < 0 || y < 0 || x > this.boxWidth || y > this.boxHeight) this.setView(next.x, next.y, this.zoom);
  }
}

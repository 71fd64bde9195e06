// Charts over time on a canvas: lines, or bands that add up. A chart gets series of one value a moment, null for
// none; it draws, says its figures in a legend, and shows those of the moment under the pointer or the arrow keys.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;  // never markup: names come from whoever runs the server
  return made;
}

const UNITS = {
  rate: (value) => `${shortNumber(value)}`,
  count: (value) => shortNumber(value),
  seconds: (value) => duration(value),
  share: (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`,
};

function shortNumber(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= 9.995 * unit || (unit > 1e3 && size >= unit)) return `${Number((value / unit).toPrecision(3))} ${name}`;
  if (size >= 99.95 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  if (size >= 9.995) return value.toFixed(1);
  return size < 0.005 ? "0" : value.toFixed(2);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0";
  if (seconds < 0.001) return `${Number((seconds * 1e6).toPrecision(3))} µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (seconds < 120) return `${Number(seconds.toPrecision(3))} s`;
  return `${Math.floor(seconds / 60)} min`;
}

// The ends of the grid: 1, 2 or 5 times a power of ten, three or four of them.
function gridStep(top) {
  const rough = top / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => power * factor >= rough);
}

class Chart {
  constructor(parent, { id, title, unit, format, stacked = false, log = false, series, top = 0, note = "" }) {
    Object.assign(this, { id, title, unit, stacked, log, series, least: top });
    this.format = UNITS[format];
    this.pointed = null;
    this.figure = element("section", "chart");
    this.figure.id = id;
    const head = element("div", "top");
    const heading = element("h2", "", title);
    heading.id = `${id}-title`;
    this.at = element("span", "at");
    head.append(heading, this.at, element("span", "unit", unit));
    this.canvas = element("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.legend = element("ul", "legend");
    this.figure.append(head, this.canvas, this.legend);
    if (note) this.figure.title = note;
    parent.append(this.figure);
    this.listen();
    this.entries = new Map();
    this.none = null;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.point(event.offsetX / canvas.clientWidth));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("blur", () => this.point(null));
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) {
        const last = this.moments.length - 1;
        const from = this.pointed === null ? last : this.pointed;
        this.pointed = Math.max(0, Math.min(last, from + step * Math.max(1, Math.round(last / 60))));
        event.preventDefault();
        this.draw();
      } else if (event.key === "Escape") this.point(null);
    });
    new ResizeObserver(() => this.moments && this.draw()).observe(canvas);
  }

  point(share) {
    if (!this.moments) return;
    if (share === null) this.pointed = null;
    else {
      const span = (share * this.canvas.clientWidth - this.left) / (this.canvas.clientWidth - this.left - 6);
      const wanted = this.from + span * (this.to - this.from);
      this.pointed = this.nearest(wanted);
    }
    this.draw();
  }

  nearest(time) {
    let best = null;
    this.moments.forEach((moment, index) => {
      if (best === null || Math.abs(moment.time - time) < Math.abs(this.moments[best].time - time)) best = index;
    });
    return best;
  }

  show(moments, from, to) {
    Object.assign(this, { moments, from, to });
    if (this.pointed !== null && this.pointed >= moments.length) this.pointed = null;
    this.draw();
  }

  // What each series is worth at each moment; names are fixed, or found in the moments.
  values() {
    const series = typeof this.series === "function" ? this.series(this.moments) : this.series;
    return series.map((one) => ({ ...one, values: this.moments.map(one.of) }));
  }

  draw() {
    const { canvas } = this;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "12px system-ui, sans-serif";
    const series = this.values();
    const axis = this.scaleOf(series);
    this.left = 8 + Math.max(...axis.ticks.map((tick) => pen.measureText(this.format(tick)).width));
    const box = { left: this.left, right: width - 6, top: 8, bottom: height - 20 };
    const x = (time) => box.left + ((time - this.from) / (this.to - this.from)) * (box.right - box.left);
    const y = (value) => box.bottom - axis.share(value) * (box.bottom - box.top);
    this.drawGrid(pen, box, x, y, axis.ticks);
    pen.save();
    pen.beginPath();
    pen.rect(box.left, box.top - 2, box.right - box.left, box.bottom - box.top + 3);
    pen.clip();
    if (this.stacked) this.drawBands(pen, series, x, y);
    else series.forEach((one) => this.drawLine(pen, one, x, y));
    pen.restore();
    if (this.pointed !== null) this.drawPointer(pen, box, x(this.moments[this.pointed].time));
    this.say(series);
  }

  scaleOf(series) {
    let top = this.least, low = Infinity;
    this.moments.forEach((_, index) => {
      const values = series.map((one) => one.values[index] ?? 0);
      top = Math.max(top, this.stacked ? values.reduce((sum, value) => sum + value, 0) : Math.max(0, ...values));
      for (const value of values) if (value > 0) low = Math.min(low, value);
    });
    if (this.log && top > 0) {
      const first = Math.floor(Math.log10(low)), last = Math.max(first + 1, Math.ceil(Math.log10(top)));
      const ticks = [];
      for (let power = first; power <= last; power++) ticks.push(10 ** power);
      const share = (value) => (value > 0 ? (Math.log10(value) - first) / (last - first) : 0);
      return { ticks, share };
    }
    if (!top) top = 1;
    const step = gridStep(top), ticks = [];
    const end = this.least === top ? top : Math.ceil(top / step - 1e-9) * step;
    for (let tick = 0; tick <= end * 1.0001; tick += step) ticks.push(tick);
    return { ticks, share: (value) => value / end };
  }

  drawGrid(pen, box, x, y, ticks) {
    pen.lineWidth = 1;
    pen.strokeStyle = css("--grid");
    pen.fillStyle = css("--soft");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const tick of ticks) {
      const level = Math.round(y(tick)) + 0.5;
      pen.beginPath();
      pen.moveTo(box.left, level);
      pen.lineTo(box.right, level);
      pen.stroke();
      pen.fillText(this.format(tick), box.left - 5, level);
    }
    const span = this.to - this.from;
    const step = [10, 30, 60, 120, 300].find((one) => span / one <= 6) || 600;
    pen.textBaseline = "alphabetic";
    for (let ago = 0; ago <= span; ago += step) {
      const label = ago === 0 ? "now" : ago % 60 ? `−${ago} s` : `−${ago / 60} min`;
      const place = x(this.to - ago), half = pen.measureText(label).width / 2;
      if (place - half < box.left - 4) continue;
      pen.textAlign = "center";
      pen.fillText(label, Math.min(place, box.right - half), box.bottom + 15);
    }
  }

  drawLine(pen, one, x, y) {
    pen.strokeStyle = pen.fillStyle = css(one.color);
    pen.lineWidth = 1.8;
    pen.lineJoin = "round";
    pen.setLineDash(one.dash || []);
    pen.beginPath();
    let down = false, alone = null;
    const dots = [];
    one.values.forEach((value, index) => {
      const gap = index && this.moments[index].number !== this.moments[index - 1].number + 1;
      if (value === null || gap) {
        if (alone !== null) dots.push(alone);
        down = false;
        alone = null;
      }
      if (value === null) return;
      const place = [x(this.moments[index].time), y(value)];
      if (down) pen.lineTo(...place);
      else pen.moveTo(...place);
      alone = down ? null : place;
      down = true;
    });
    if (alone !== null) dots.push(alone);
    pen.stroke();
    pen.setLineDash([]);
    for (const [left, top] of dots) {
      pen.beginPath();
      pen.arc(left, top, 1.6, 0, 7);
      pen.fill();
    }
  }

  drawBands(pen, series, x, y) {
    const floor = this.moments.map(() => 0);
    for (const one of series) {
      const roof = floor.map((value, index) => value + (one.values[index] ?? 0));
      pen.fillStyle = css(one.color);
      pen.beginPath();
      this.moments.forEach((moment, index) => pen.lineTo(x(moment.time), y(roof[index])));
      for (let index = roof.length - 1; index >= 0; index--)
        pen.lineTo(x(this.moments[index].time), y(floor[index]));
      pen.fill();
      roof.forEach((value, index) => (floor[index] = value));
    }
  }

  drawPointer(pen, box, place) {
    pen.strokeStyle = css("--text");
    pen.globalAlpha = 0.55;
    pen.beginPath();
    pen.moveTo(Math.round(place) + 0.5, box.top);
    pen.lineTo(Math.round(place) + 0.5, box.bottom);
    pen.stroke();
    pen.globalAlpha = 1;
  }

  // The figures in words: of the moment pointed at, else of the latest.
  say(series) {
    const index = this.pointed === null ? this.moments.length - 1 : this.pointed;
    const moment = this.moments[index];
    this.at.textContent = this.pointed === null ? "" : new Date(1000 * moment.time).toLocaleTimeString();
    const kept = new Set();
    const parts = [];
    for (const one of series) {
      kept.add(one.name);
      const value = this.format(moment ? one.values[index] : null);
      parts.push(`${one.name} ${value}`);
      let entry = this.entries.get(one.name);
      if (!entry) {
        const item = element("li"), swatch = element("span", "swatch"), figure = element("b");
        swatch.setAttribute("aria-hidden", "true");
        item.append(swatch, element("span", "name", one.name), figure);
        entry = { item, swatch, figure };
        this.entries.set(one.name, entry);
        this.legend.append(item);
      }
      entry.swatch.style.setProperty("--c", `var(${one.color})`);
      entry.figure.textContent = value;
    }
    if (series.length) {
      this.none?.remove();
      this.none = null;
    } else if (!this.none) {
      this.none = element("li", "name", "none in this time");
      this.legend.append(this.none);
    }
    for (const [name, entry] of this.entries) {
      if (!kept.has(name)) {
        entry.item.remove();
        this.entries.delete(name);
      }
    }
    this.canvas.setAttribute("aria-label", `${this.title}, ${this.unit}: ${parts.join(", ") || "nothing yet"}`);
  }
}

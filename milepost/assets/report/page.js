"use strict";
// What pages of plots share: they draw with `draw`, and say with `start` how all is drawn again.
const page = (() => {
  const hidden = new Set(); // names of series that the reader switched off, in every plot
  const shown = {};         // id of a plot -> number of its view
  let drawAll = () => {};

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  // Names come escaped for plotly; in the page they are plain text.
  const plain = (name) => new DOMParser().parseFromString(name, "text/html").documentElement.textContent;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  async function loadLibrary() {
    const packed = document.getElementById("library");
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const source = await new Response(stream).text();
    packed.remove();
    document.head.append(make("script", {}, source));
  }

  // -- a plot ------------------------------------------------------------------------------------

  function axis(given = {}) {
    const lines = { gridcolor: colour("--grid"), linecolor: colour("--line"), zerolinecolor: colour("--line") };
    return { ...lines, automargin: true, fixedrange: false, ...given };
  }

  // Labels of a logarithmic axis that have room, the last one before all.
  function thinned(given, width) {
    if (!given || !given.tickvals || given.type !== "log") return given;
    const room = (76 / (width - 70)) * (given.range[1] - given.range[0]);
    let last = Infinity;
    const kept = given.tickvals.map((value, i) => [Math.log10(value), i]).reverse().filter(([place]) => {
      if (last - place < room) return false;
      last = place;
      return true;
    });
    const pick = (list) => kept.map(([, i]) => list[i]);
    return { ...given, tickvals: pick(given.tickvals), ticktext: pick(given.ticktext) };
  }

  function themed(view, canvas) {
    const layout = structuredClone(view.layout);
    const hover = { bgcolor: colour("--card"), bordercolor: colour("--line"), align: "left" };
    layout.shapes = (layout.shapes || []).map((shape) => ({ ...shape, fillcolor: colour("--shade") }));
    return {
      ...layout,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--text") },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { ...hover, font: { color: colour("--text"), size: 12 } },
      hovermode: layout.hovermode || "closest",
      height: layout.height || canvas.clientHeight,
      width: canvas.clientWidth,
      margin: { l: 8, r: 12, t: 26, b: 8 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--accent") },
      showlegend: false,
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: axis(thinned(layout.xaxis, canvas.clientWidth)),
      yaxis: axis(layout.yaxis),
    };
  }

  function traces(view) {
    return view.data.map((trace) => {
      const own = { visible: !hidden.has(trace.name) };
      if (trace.meta) own.line = { ...trace.line, color: colour(trace.meta === "limit" ? "--text" : "--soft") };
      return { ...trace, ...own };
    });
  }

  function draw(id, plot) {
    const box = document.querySelector(`#${id} > .plot`);
    if (plot.empty) {
      box.replaceChildren(make("p", { class: "empty" }, plot.empty));
      return;
    }
    const number = Math.min(shown[id] ?? plot.first ?? 0, plot.views.length - 1);
    const view = plot.views[number];
    let canvas = box.querySelector(".canvas");
    if (!canvas) {
      canvas = make("div", { class: "canvas", role: "img" });
      box.replaceChildren(make("div", { class: "views" }), make("ul", { class: "legend" }), canvas);
    }
    canvas.setAttribute("aria-label", `${document.querySelector(`#${id} > h2, #${id} > h3`).textContent}: ${view.name}`);
    canvas.style.height = view.layout.height ? `${view.layout.height}px` : "";
    drawViews(box.querySelector(".views"), id, plot, number);
    drawLegend(box.querySelector(".legend"), view);
    const config = { displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]] };
    return Plotly.react(canvas, traces(view), themed(view, canvas), config);
  }

  function drawViews(box, id, plot, number) {
    if (plot.views.length < 2) {
      box.replaceChildren();
    } else if (plot.views.length > 8) {
      const options = plot.views.map((view, i) => make("option", { value: i }, view.name));
      const select = make("select", { "aria-label": "What is shown" }, ...options);
      select.value = number;
      select.onchange = () => choose(id, Number(select.value));
      box.replaceChildren(select);
    } else {
      box.replaceChildren(...plot.views.map((view, i) => {
        const button = make("button", { type: "button", "aria-pressed": i === number }, view.name);
        button.onclick = () => choose(id, i);
        return button;
      }));
    }
  }

  function choose(id, number) {
    shown[id] = number;
    drawAll();
  }

  const DASHES = { dot: "2 3", dash: "7 4", dashdot: "7 3 2 3", longdash: "11 4" };
  const SHAPES = {
    circle: "M11 3a4 4 0 1 0 .01 0z", square: "M7 3h8v8h-8z", diamond: "M11 2l5 5-5 5-5-5z",
    "triangle-up": "M11 2l5 9h-10z", cross: "M9.5 3h3v2.5H15v3h-2.5V11h-3V8.5H7v-3h2.5z",
  };

  function swatch(trace) {
    const tint = (trace.marker && trace.marker.color) || (trace.line && trace.line.color) || colour("--soft");
    const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const part = (tag, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      picture.append(element);
    };
    picture.setAttribute("width", 22);
    picture.setAttribute("height", 14);
    picture.setAttribute("aria-hidden", "true");
    const [symbol, open] = ((trace.marker && trace.marker.symbol) || "").split(/-(?=open)/);
    if (trace.type === "bar" || trace.stackgroup) {
      part("rect", { x: 5, y: 1, width: 12, height: 12, rx: 2, fill: tint, opacity: (trace.marker || {}).opacity ?? 1 });
      return picture;
    }
    if ((trace.mode || "").includes("lines"))
      part("path", { d: "M0 7h22", stroke: tint, "stroke-width": 2, "stroke-dasharray": DASHES[(trace.line || {}).dash] || "none" });
    if (SHAPES[symbol])
      part("path", { d: SHAPES[symbol], fill: open ? colour("--card") : tint, stroke: tint, "stroke-width": 1.5 });
    return picture;
  }

  function drawLegend(list, view) {
    list.replaceChildren(...view.data.map((trace) => {
      const button = make("button", { type: "button", "aria-pressed": !hidden.has(trace.name) }, swatch(trace), plain(trace.name));
      button.onclick = () => {
        if (!hidden.delete(trace.name)) hidden.add(trace.name);
        drawAll();
      };
      return make("li", {}, button);
    }));
  }

  // -- the page ----------------------------------------------------------------------------------

  function fill(select, names, onchange) {
    select.replaceChildren(...names.map((name, i) => make("option", { value: i }, name)));
    select.onchange = () => onchange(Number(select.value));
  }

  function sortable(table) {
    const body = table.tBodies[0];
    table.querySelectorAll("th button").forEach((button) => {
      const column = button.parentElement.cellIndex;
      button.onclick = () => {
        const head = button.parentElement;
        const down = head.getAttribute("aria-sort") !== "descending";
        const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
        const compare = (one, other) => {
          const [a, b] = [value(one), value(other)];
          if (a === "" || b === "") return (a === "") - (b === ""); // what has no value comes last, always
          const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
          return down ? -order : order;
        };
        body.append(...[...body.rows].sort(compare));
        table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
      };
    });
  }

  // `drawEverything` is called now and whenever the page's width or colours change.
  async function start(drawEverything) {
    drawAll = drawEverything;
    if (document.getElementById("library").textContent) await loadLibrary();
    await drawAll();
    document.documentElement.dataset.drawn = "yes"; // for whoever waits for it, such as a test
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
    let pending = 0;
    let width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === width) return; // a phone's address bar comes and goes
      width = innerWidth;
      cancelAnimationFrame(pending);
      pending = requestAnimationFrame(drawAll);
    });
  }

  function failed(error) {
    const text = "The plots can't be shown: this page needs a browser of 2023 or newer. The tables below are complete.";
    document.querySelector("main").prepend(make("p", { class: "notice" }, text));
    throw error;
  }

  const data = JSON.parse(document.getElementById("data").textContent);
  return { data, make, draw, fill, sortable, start: (drawEverything) => start(drawEverything).catch(failed) };
})();

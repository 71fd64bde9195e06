// Asks this server for its numbers each second, and draws them.

const SPANS = [["1 min", 60], ["5 min", 300], ["15 min", 900]];
const COLORS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c7", "--c8", "--c9", "--c10", "--c6"];
const CAUSES = {
  unseen: "never seen", evicted_state: "snapshot evicted", evicted_kv: "KV evicted", no_snapshot: "no snapshot there",
  below_unit: "below a match unit", salt: "another salt", not_published: "being computed", not_loaded: "in another tier",
  no_memory: "no room to resume", cap: "last token",
};
// What is lost although it was once there stands out; what nobody had sent before is plain. "hit" has --c3.
const LOST = {
  evicted_state: "--c2", evicted_kv: "--c5", no_snapshot: "--c4", unseen: "--c6", not_published: "--c7",
  below_unit: "--c1", salt: "--c8", not_loaded: "--c10", no_memory: "--bad", cap: "--c9",
};
const KINDS = [
  ["state", "states", "--c2"], ["kv", "KV", "--c1"], ["cached_state", "cached states", "--c5"],
  ["cached_kv", "cached KV", "--c8"], ["quarantined", "quarantined", "--bad"], ["free", "free", "--free"],
];
const QUANTILES = [["p50", "--c3", []], ["p90", "--c1", []], ["p99", "--c2", []]];

const percentiles = (field) => QUANTILES.map(([name, color, dash]) => (
  { name, color, dash, of: (moment) => (moment[field] ? moment[field][name] : null) }
));

// Whatever a table of rates names, the same color for the same name while the page is open.
function named(field, words, colors) {
  const seen = new Map(Object.entries(colors));
  const spare = COLORS.filter((color) => !Object.values(colors).includes(color));
  return (moments) => {
    const found = new Set();
    for (const moment of moments) for (const name of Object.keys(moment[field])) found.add(name);
    for (const name of found) if (!seen.has(name)) seen.set(name, spare[seen.size % spare.length]);
    return [...seen.keys()].filter((name) => found.has(name)).map((name) => ({
      name: words[name] || name, color: seen.get(name),
      of: (moment) => moment[field][name] || 0,
    }));
  };
}

const held = { moments: [], span: 300, next: 0, head: null, paused: false, failures: 0, key: "" };
const at = (id) => document.getElementById(id);

const CHARTS = [
  { id: "throughput", title: "Throughput", unit: "tokens/s", format: "rate", series: [
    { name: "prompt", color: "--c1", of: (moment) => moment.prompt_rate },
    { name: "cached", color: "--c3", of: (moment) => moment.cached_rate },
    { name: "output", color: "--c2", of: (moment) => moment.output_rate },
  ] },
  { id: "requests", title: "Requests", unit: "at a time", format: "count", series: [
    { name: "running", color: "--c1", of: (moment) => moment.running },
    { name: "waiting", color: "--c2", of: (moment) => moment.waiting },
  ] },
  { id: "ttft", title: "Time to first token", unit: "logarithmic", format: "seconds", log: true, series: percentiles("ttft") },
  { id: "itl", title: "Time between tokens", unit: "logarithmic", format: "seconds", log: true, series: percentiles("itl") },
  { id: "pages", title: "Pages by what they hold", unit: "pages", format: "count", stacked: true, series:
    KINDS.map(([kind, name, color]) => ({ name, color, of: (moment) => moment.pages[kind] })) },
  { id: "cache", title: "Prompt tokens hit and lost, by cause", unit: "tokens/s", format: "rate", stacked: true, series: (moments) => [
    { name: "hit", color: "--c3", of: (moment) => moment.cached_rate }, ...lost(moments),
  ] },
  { id: "control", title: "Control plane, per step", unit: "logarithmic", format: "seconds", log: true, series: percentiles("control") },
  { id: "refused", title: "Refused, or ended by the server", unit: "requests/s", format: "rate", stacked: true,
    series: named("refused_rates", {}, {}) },
];

const lost = named("lost_rates", CAUSES, LOST);

function tiles() {
  const { head } = held, now = held.moments[held.moments.length - 1];
  if (!head) return [];
  const totals = head.totals, pages = now ? now.pages : {};
  const busy = (pages.state || 0) + (pages.kv || 0);
  const share = totals.looked_up ? totals.hit / totals.looked_up : 0;
  return [
    ["Output tokens/s", now ? shortNumber(now.output_rate) : "–", `${shortNumber(totals.output_tokens)} in all`],
    ["Prompt tokens/s", now ? shortNumber(now.prompt_rate + now.cached_rate) : "–", `${shortNumber(totals.prompt_tokens)} in all`],
    ["Found cached", UNITS.share(share), `of ${shortNumber(totals.looked_up)} tokens`],
    ["First token", duration(now && now.ttft ? now.ttft.p50 : null), now && now.ttft ? `p99 ${duration(now.ttft.p99)}` : "no request began"],
    ["Running", now ? String(now.running) : "–", now ? `${now.waiting} waiting` : ""],
    ["Pages in use", UNITS.share(busy / head.total_pages), `of ${shortNumber(head.total_pages)}, ${shortNumber(pages.free)} free`],
    ["Engine busy", now ? UNITS.share(now.busy) : "–", `${shortNumber(totals.requests)} requests`],
    ["Up for", duration(head.uptime), `${shortNumber(totals.preemptions)} preemptions`],
  ];
}

function showTiles() {
  const parent = at("tiles");
  const wanted = tiles();
  while (parent.children.length < wanted.length) {
    const tile = element("div", "tile");
    tile.append(element("div", "name"), element("div", "value"), element("div", "more"));
    parent.append(tile);
  }
  wanted.forEach(([name, value, more], index) => {
    const [first, second, third] = parent.children[index].children;
    first.textContent = name;
    second.textContent = value;
    third.textContent = more;
  });
}

function showState(kind, text) {
  at("state").className = `state ${kind}`;
  // Told again only when it changes, so that a screen reader does not repeat it each second.
  if (at("state-text").textContent !== text) at("state-text").textContent = text;
  document.body.classList.toggle("stale", kind === "bad");
}

function drawCharts() {
  const last = held.moments[held.moments.length - 1];
  const to = last ? last.time : Date.now() / 1000;
  // A server that is younger than the span fills the charts all the same.
  const age = last ? to - held.moments[0].time : 0;
  const from = to - Math.min(held.span, Math.max(60, age));
  const shown = held.moments.filter((moment) => moment.time >= from);
  for (const chart of held.charts) chart.show(shown, from, to);
  if (!at("numbers").hidden) showTable(shown, from, to);
  document.documentElement.dataset.drawn = String(shown.length);
}

// Means over parts of the span, for whoever would rather read than look.
function showTable(moments, from, to) {
  const parts = 10, width = (to - from) / parts;
  const columns = Array.from({ length: parts }, (_, index) => {
    const end = to - index * width;
    return { end, moments: moments.filter((moment) => moment.time > end - width && moment.time <= end) };
  }).filter((column) => column.moments.length);
  const table = element("table");
  const top = element("tr");
  top.append(element("th", "", "Until"));
  for (const column of columns) top.append(element("th", "", new Date(1000 * column.end).toLocaleTimeString()));
  for (const cell of top.children) cell.scope = "col";
  const head = element("thead"), body = element("tbody");
  head.append(top);
  for (const chart of held.charts) {
    const group = element("th", "group", `${chart.title}, ${chart.unit === "logarithmic" ? "seconds" : chart.unit}`);
    group.scope = "rowgroup";
    group.colSpan = columns.length + 1;
    const title = element("tr");
    title.append(group);
    body.append(title);
    const series = typeof chart.series === "function" ? chart.series(moments) : chart.series;
    for (const one of series) {
      const row = element("tr"), name = element("th", "", one.name);
      name.scope = "row";
      row.append(name);
      for (const column of columns) {
        const values = column.moments.map(one.of).filter((value) => value !== null);
        const mean = values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
        row.append(element("td", "", chart.format(mean)));
      }
      body.append(row);
    }
  }
  table.append(head, body);
  at("table").replaceChildren(...table.children);
}

function take(stats) {
  const restarted = held.head && stats.uptime < held.head.uptime;
  if (restarted) {
    held.moments = [];
    held.next = 0;
  }
  held.head = stats;
  held.charts.find((chart) => chart.id === "pages").least = stats.total_pages;
  at("model").textContent = stats.model;
  document.title = `${stats.model} – Milepost`;
  if (!restarted) {
    held.moments = held.moments.concat(stats.moments).slice(-stats.kept);
    if (stats.moments.length) held.next = stats.moments[stats.moments.length - 1].number + 1;
  }
  if (stats.failure) showState("bad", "the engine has failed; the server's log says why");
  else if (stats.draining) showState("warn", "shutting down: no new requests are taken");
  else showState("good", "serving");
}

async function ask() {
  const headers = held.key ? { Authorization: `Bearer ${held.key}` } : {};
  // An address that was opened with a name and a password in it can't be asked with them in it.
  const address = new URL(`stats.json?since=${held.next}`, location.href);
  address.username = address.password = "";
  const reply = await fetch(address, { headers, cache: "no-store", signal: AbortSignal.timeout(5000) });
  at("key-form").hidden = reply.status !== 401 && reply.status !== 403;
  if (!reply.ok) throw new Error(reply.status === 401 || reply.status === 403
    ? "this server wants an operator's key" : `the server answers ${reply.status}`);
  return reply.json();
}

async function turn() {
  if (!held.paused && !document.hidden) {
    try {
      take(await ask());
      held.failures = 0;
      showTiles();
      drawCharts();
    } catch (error) {
      held.failures += 1;
      const known = String(error.message).startsWith("th") ? error.message : "the server does not answer";
      const since = held.head ? `; last heard ${new Date(1000 * held.head.time).toLocaleTimeString()}` : "";
      showState("bad", `${known}${since}`);
      document.documentElement.dataset.gone = "yes";
    }
  }
  // A server that is gone is asked more rarely.
  setTimeout(turn, Math.min(1000 * (1 + held.failures), 10000));
}

function press(button, pressed) {
  button.setAttribute("aria-pressed", String(pressed));
}

function build() {
  held.charts = CHARTS.map((one) => new Chart(at("charts"), one));
  for (const [name, seconds] of SPANS) {
    const button = element("button", "", name);
    button.type = "button";
    press(button, seconds === held.span);
    button.addEventListener("click", () => {
      held.span = seconds;
      for (const other of at("spans").children) press(other, other === button);
      drawCharts();
    });
    at("spans").append(button);
  }
  at("hold").addEventListener("click", () => {
    held.paused = !held.paused;
    press(at("hold"), held.paused);
    if (held.paused) showState("warn", "paused");
  });
  at("as-table").addEventListener("click", () => {
    at("numbers").hidden = !at("numbers").hidden;
    press(at("as-table"), !at("numbers").hidden);
    drawCharts();
    if (!at("numbers").hidden) at("numbers").scrollIntoView({ block: "nearest" });
  });
  at("key").addEventListener("change", () => (held.key = at("key").value.trim()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
  turn();
}

build();

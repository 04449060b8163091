// Curves of metrics with uPlot, and the heat map of step times on a canvas.
// Each chart has a summary in words and a table, for people who cannot see it.

import { duration } from "./app.js";

const COLOURS = 7;
const DASHES = [[], [8, 4], [2, 3]];  // a colour that is used again has other dashes
const FEW = 16;  // curves up to which a chart marks restarts by name and lists values at the cursor
const WAIT_MS = 3000;
const prefs = { x: "step", log: false, smooth: 0, ...read("charts") };

function read(name) {
  try { return JSON.parse(localStorage.getItem(name)); } catch { return null; }
}
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
/** Returns a number with four significant digits; the server sends values that JSON lacks as text, such as "nan". */
function show(value) {
  if (typeof value === "string") return value;
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  for (const [power, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"]]) {
    if (size >= power && size < 1e15) return `${Number((value / power).toPrecision(3))}${sign}`;
  }
  if (size !== 0 && (size >= 1e15 || size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e");
  return Number(value.toPrecision(4)).toLocaleString("en");
}
/** Returns the colour of a style variable such as `--c0` in the current colour scheme. */
function colour(name) {
  const probe = document.body.appendChild(make("span", { hidden: true }));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
async function fetchJson(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`the server has refused the request (${response.status})`);
  return response.json();
}

// -- data of a chart --
function numbers(values) { return values.map((value) => (typeof value === "number" ? value : null)); }

/** Exponential moving average, corrected for its start as in TensorBoard; gaps stay gaps. */
function smoothed(values, weight) {
  let sum = 0, count = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + (1 - weight) * value;
    count += 1;
    return sum / (1 - weight ** count);
  });
}
/** Returns the attempts of a curve as [x, y] columns with ascending x. Steps of a later attempt may go back. */
function attemptsOf(curve, axis) {
  const x = axis === "step" ? curve.steps : curve.times;
  const y = numbers(curve.values).map((value) => (prefs.log && value <= 0 ? null : value));
  const cuts = [0, ...curve.restarts, y.length];
  return cuts.slice(1).map((end, at) => {
    const order = [...Array(end - cuts[at]).keys()].map((index) => index + cuts[at]);
    order.sort((one, other) => x[one] - x[other]);
    return [order.map((index) => x[index]), order.map((index) => y[index])];
  });
}
function statistics(curve) {
  const values = numbers(curve.values);
  const finite = values.flatMap((value, index) => (value === null ? [] : [index]));
  const by = (is) => finite.reduce((best, index) => (best < 0 || is(values[index], values[best]) ? index : best), -1);
  const low = by((one, best) => one < best), high = by((one, best) => one > best);
  const at = (index) => (index < 0 ? "" : curve.steps[index] === null ? ` after ${duration(curve.times[index])}`
    : ` at step ${show(curve.steps[index])}`);
  return { first: values[finite[0]], last: curve.values.at(-1), low: values[low], high: values[high],
    lowAt: at(low), highAt: at(high) };
}

// -- one chart --
class Chart {
  /** `label(curve)` names a curve; `load()` returns its curves, each of the colour of its place. */
  constructor(title, label, load) {
    Object.assign(this, { title, label, load, curves: [], hidden: new Set() });
    this.plot = make("div", { className: "plot" });
    this.keys = make("div", { className: "keys" });
    this.words = make("figcaption", { className: "small dim" });
    this.table = make("details", { className: "small" }, make("summary", { textContent: "Table" }));
    this.table.addEventListener("toggle", () => this.showTable());
    this.root = make("figure", { className: "chart" }, make("h3", { textContent: title }), this.plot, this.keys,
      this.words, this.table);
    new ResizeObserver(() => this.chart?.setSize(this.size())).observe(this.plot);
  }

  size() { return { width: Math.max(200, this.plot.clientWidth), height: this.plot.closest("[data-compare]") ? 340 : 190 }; }

  async update() {
    this.isLoaded = true;
    try {
      const curves = (await this.load()).map((curve, place) => ({ ...curve, place }));
      this.curves = curves.filter((curve) => curve.values.length);
    } catch (error) { this.words.textContent = error.message; return; }
    this.draw();
  }

  draw() {
    const hasSteps = this.curves.every((curve) => curve.steps.every((step) => step !== null));
    this.axis = hasSteps ? prefs.x : "time";
    const parts = this.curves.flatMap((curve, index) => attemptsOf(curve, this.axis).map((part) => ({ part, index })));
    this.chart?.destroy();
    this.chart = null;
    this.showWords();
    this.showKeys();
    this.showTable();
    if (!parts.length) return;
    const ink = colour("--dim"), grid = colour("--line");
    const colours = [...Array(COLOURS).keys()].map((index) => colour(`--c${index}`));
    const series = [], columns = [];
    for (const { part: [x, y], index } of parts) {
      const { place } = this.curves[index];
      const shared = { stroke: colours[place % COLOURS], show: !this.hidden.has(index), index, points: { size: 4 } };
      if (prefs.smooth > 0 && this.curves.length <= FEW) {
        series.push({ ...shared, width: 1, alpha: 0.25, points: { show: false }, isRaw: true });
        columns.push([x, y]);
      }
      const dash = DASHES[Math.floor(place / COLOURS) % DASHES.length];
      series.push({ ...shared, width: 1.75, dash });
      columns.push([x, prefs.smooth > 0 ? smoothed(y, prefs.smooth) : y]);
    }
    this.series = series;
    const format = this.axis === "step" ? show : (value) => duration(value);
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    this.chart = new uPlot({
      ...this.size(),
      series: [{}, ...series],
      scales: { x: { time: false }, y: { distr: prefs.log ? 3 : 1 } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map(format), space: 70, size: 30 },
        { ...axis, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : show(tick))), size: 54 }],
      legend: { show: false },
      focus: { alpha: this.curves.length > 1 ? 0.2 : 1 },
      cursor: { focus: { prox: this.curves.length > 1 ? 24 : -1 }, sync: { key: `axis-${this.axis}`, setSeries: false } },
      hooks: { draw: [() => this.drawRestarts(ink)], setCursor: [() => this.showCursor(format)],
        setSeries: [(_, index) => this.mark(index === null ? null : this.series[index - 1]?.index)] },
    }, uPlot.join(columns), this.plot);
    this.chart.root.setAttribute("role", "img");
    this.chart.root.setAttribute("aria-label", `${this.title}. ${this.words.textContent}`);
  }

  /** Draws a vertical line where each attempt after the first begins. */
  drawRestarts(ink) {
    const { ctx, bbox } = this.chart;
    const drawn = [];
    ctx.save();
    ctx.font = `${11 * devicePixelRatio}px system-ui`;
    ctx.lineWidth = devicePixelRatio;
    ctx.textAlign = "left";
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.strokeStyle = ctx.fillStyle = ink;
    for (const curve of this.curves.length <= FEW ? this.curves : []) {
      curve.restarts.forEach((at, number) => {
        const x = Math.round(this.chart.valToPos((this.axis === "step" ? curve.steps : curve.times)[at], "x", true));
        if (x < bbox.left || x > bbox.left + bbox.width || drawn.some((other) => Math.abs(other - x) < 2)) return;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        const text = `restart ${number + 1}`, width = ctx.measureText(text).width + 6 * devicePixelRatio;
        const isFree = drawn.every((other) => Math.abs(other - x) > width);
        const left = x + width > bbox.left + bbox.width ? x - width : x + 4 * devicePixelRatio;
        if (isFree) ctx.fillText(text, left, bbox.top + 11 * devicePixelRatio);
        drawn.push(x);
      });
    }
    ctx.restore();
  }

  showKeys() {
    this.keys.hidden = this.curves.length < 2;
    this.keys.replaceChildren(...this.curves.map((curve, index) => {
      const line = make("span", { className: `line c${curve.place % COLOURS} dash${Math.floor(curve.place / COLOURS) % DASHES.length}` });
      const value = make("span", { className: "dim num", textContent: show(statistics(curve).last) });
      const key = make("button", { type: "button" }, line, this.label(curve), value);
      key.setAttribute("aria-pressed", !this.hidden.has(index));
      key.addEventListener("click", () => {
        this.hidden[this.hidden.has(index) ? "delete" : "add"](index);
        key.setAttribute("aria-pressed", !this.hidden.has(index));
        this.each(index, (at) => this.chart.setSeries(at, { show: !this.hidden.has(index) }));
      });
      for (const [name, focus] of [["mouseenter", true], ["mouseleave", false], ["focus", true], ["blur", false]]) {
        key.addEventListener(name, () => this.highlight(focus ? index : null));
      }
      return key;
    }));
  }

  each(index, work) { this.series?.forEach((one, at) => { if (one.index === index) work(at + 1); }); }

  /** Fades all curves except one; null shows all again. */
  highlight(index) {
    this.chart?.batch(() => this.series.forEach((one, at) => {
      this.chart.series[at + 1].alpha = index === null || one.index === index ? one.alpha ?? 1 : 0.12;
    }));
    this.chart?.redraw(false);
  }

  mark(index) { [...this.keys.children].forEach((key, at) => key.classList.toggle("on", at === index)); }

  showCursor(format) {
    const { idx, idxs } = this.chart.cursor;
    const isOver = idx !== null && idx !== undefined;
    if (isOver === Boolean(this.isOver) && !isOver) return;
    this.isOver = isOver;
    if (!isOver) return this.showWords();
    const values = new Map();
    this.series.forEach((one, at) => {
      const value = idxs[at + 1] === null ? null : this.chart.data[at + 1][idxs[at + 1]];
      if (!one.isRaw && typeof value === "number") values.set(one.index, value);
    });
    const where = `${this.axis === "step" ? "step " : "after "}${format(this.chart.data[0][idx])}`;
    if (this.curves.length === 1) this.words.textContent = `${where}: ${show(values.get(0))}`;
    else this.words.textContent = where;
    if (this.curves.length <= FEW) {
      [...this.keys.children].forEach((key, at) => { key.lastChild.textContent = show(values.get(at)); });
    }
  }

  showWords() {
    const curves = this.curves;
    if (!curves.length) { this.words.textContent = "No values."; return; }
    const all = curves.map((curve) => ({ ...statistics(curve), curve }));
    const odd = curves.reduce((sum, curve) => sum + curve.not_finite, 0);
    const restarts = Math.max(...curves.map((curve) => curve.restarts.length));
    let text;
    if (curves.length === 1) {
      const [one] = all;
      text = `${curves[0].points.toLocaleString("en")} value${curves[0].points === 1 ? "" : "s"}: last ${show(one.last)}, lowest ${show(one.low)}${one.lowAt}, `
        + `highest ${show(one.high)}${one.highAt}`;
    } else {
      const known = all.filter((one) => typeof one.last === "number").sort((one, other) => one.last - other.last);
      text = known.length ? `${curves.length} curves: last values from ${show(known[0].last)} (${this.label(known[0].curve)}) `
        + `to ${show(known.at(-1).last)} (${this.label(known.at(-1).curve)})` : `${curves.length} curves`;
      const lost = all.filter((one) => typeof one.last === "string");
      if (lost.length) text += `; ${lost.length} end${lost.length > 1 ? "" : "s"} with ${lost[0].last} (${this.label(lost[0].curve)})`;
    }
    if (restarts) text += `; ${restarts} restart${restarts > 1 ? "s" : ""}`;
    if (odd) text += `; ${odd.toLocaleString("en")} value${odd > 1 ? "s are" : " is"} not finite`;
    if (this.axis === "time" && prefs.x === "step") text += "; the source has no steps";
    this.words.textContent = `${text}.`;
    if (curves.length <= FEW) {
      [...this.keys.children].forEach((key, at) => { key.lastChild.textContent = show(all[at]?.last); });
    }
  }

  /** Shows points of a single curve, or the range of each of several curves. */
  showTable() {
    if (!this.table.open) return;
    const isSingle = this.curves.length === 1;
    const head = isSingle ? ["Step", "Time", "Value"] : ["Curve", "Points", "First", "Last", "Lowest", "Highest"];
    const rows = isSingle ? this.curves.flatMap((curve) => {
      const every = Math.ceil(curve.values.length / 100);
      const index = [...curve.values.keys()].filter((at) => at % every === 0 || at === curve.values.length - 1);
      return index.map((at) => [show(curve.steps[at]), duration(curve.times[at]), typeof curve.values[at] === "number"
        ? show(curve.values[at]) : curve.values[at]]);
    }) : this.curves.map((curve) => {
      const { first, last, low, high } = statistics(curve);
      return [this.label(curve), show(curve.points), ...[first, last, low, high].map(show)];
    });
    this.table.replaceChildren(this.table.firstChild, tableOf(head, rows));
  }
}

function tableOf(head, rows) {
  const line = (tag, cells) => make("tr", {}, ...cells.map((text, at) => make(tag, { textContent: text, className: at ? "num" : "" })));
  const table = make("table", {}, make("thead", {}, line("th", head)), make("tbody", {}, ...rows.map((row) => line("td", row))));
  return make("div", { className: "scroll", tabIndex: 0 }, table);
}

// -- panels of charts --
/** Returns the controls that all charts of the page share. */
function controls(redraw) {
  const save = () => {
    try { localStorage.setItem("charts", JSON.stringify(prefs)); } catch { /* storage is disabled in this browser */ }
    redraw();
  };
  const toggle = (text, isOn, act) => {
    const button = make("button", { type: "button", textContent: text });
    const mark = () => button.setAttribute("aria-pressed", isOn());
    button.addEventListener("click", () => { act(); save(); button.parentElement.dispatchEvent(new Event("mark")); });
    return [button, mark];
  };
  const buttons = [
    toggle("Step", () => prefs.x === "step", () => { prefs.x = "step"; }),
    toggle("Time", () => prefs.x === "time", () => { prefs.x = "time"; }),
    toggle("Log scale", () => prefs.log, () => { prefs.log = !prefs.log; }),
  ];
  const range = make("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: prefs.smooth });
  const output = make("output", { className: "num", textContent: prefs.smooth.toFixed(2) });
  range.addEventListener("input", () => {
    prefs.smooth = Number(range.value);
    output.textContent = prefs.smooth.toFixed(2);
    clearTimeout(range.timer);
    range.timer = setTimeout(save, 60);
  });
  const bar = make("div", { className: "row small" }, ...buttons.map(([button]) => button),
    make("label", {}, "Smoothing", range, output));
  bar.addEventListener("mark", () => buttons.forEach(([, mark]) => mark()));
  bar.dispatchEvent(new Event("mark"));
  return bar;
}

const charts = new Set();
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    target.chart.isVisible = isIntersecting;
    if (isIntersecting && (!target.chart.isLoaded || target.chart.isOld)) update(target.chart);
  }
}, { rootMargin: "150px" });
function update(chart) {
  chart.isOld = false;
  return chart.update();
}
function add(chart, grid) {
  charts.add(chart);
  chart.root.chart = chart;
  grid.append(chart.root);
  seen.observe(chart.root);
}
const redraw = () => charts.forEach((chart) => { if (chart.isLoaded) chart.draw(); });
document.addEventListener("theme", redraw);

/** Calls `work` for changes of one of `runs`, at most every few seconds while the page is visible. */
function onChange(runs, work) {
  let timer = null;
  document.addEventListener("runs-changed", ({ detail }) => {
    if (timer || document.hidden || (detail.length && !detail.some((run) => runs.includes(run)))) return;
    timer = setTimeout(() => { timer = null; work(); }, WAIT_MS);
  });
}

function showNote(panel, text) {
  const note = panel.querySelector("[data-note]");
  note.textContent = text;
  note.hidden = !text;
}

function chartsOfRun(panel) {
  const address = panel.dataset.charts;
  const known = new Map();
  const grid = make("div", { className: "charts" });
  const filter = make("input", { type: "search", placeholder: "Filter metrics", ariaLabel: "Filter metrics", hidden: true });
  const bar = controls(redraw);
  bar.append(filter);
  filter.addEventListener("input", () => known.forEach((chart, name) => {
    chart.root.hidden = !name.toLowerCase().includes(filter.value.toLowerCase());
  }));
  panel.prepend(bar, grid);
  const find = async () => {
    const { names, note } = await fetchJson(address);
    for (const name of new Set(names.map((one) => one.name))) {
      if (known.has(name)) continue;
      const hasSources = names.filter((one) => one.name === name).length > 1;
      const label = (curve) => `rank ${curve.rank}${hasSources ? `, ${curve.source}` : ""}`;
      const chart = new Chart(name, label, async () => (await fetchJson(`${address}?${new URLSearchParams({ name })}`)).curves);
      known.set(name, chart);
      add(chart, grid);
    }
    filter.hidden = known.size < 7;
    bar.hidden = known.size === 0;
    showNote(panel, known.size > 0 ? "" : note);
    panel.querySelector("[data-empty]").hidden = known.size > 0 || note !== "";
  };
  find();
  onChange([panel.dataset.liveCharts], async () => {
    await find();
    known.forEach((chart) => { chart.isOld = true; if (chart.isVisible) update(chart); });
  });
}

function chartsOfComparison(panel) {
  const select = make("select", { ariaLabel: "Metric" });
  const ids = new URLSearchParams(location.search).getAll("run");
  const runs = ids.map((id) => ["run", id]);
  const bar = controls(redraw);
  bar.prepend(select);
  const load = async () => {
    const query = new URLSearchParams([...runs, ["name", select.value]]);
    const { curves } = await fetchJson(`${panel.dataset.compare}?${query}`);
    const empty = { values: [] };
    return ids.map((id) => curves.find((curve) => curve.run === id) ?? { ...empty, run: id });
  };
  const chart = new Chart("", (curve) => curve.run, load);
  const name = () => { chart.root.firstChild.textContent = chart.title = select.value; };
  const list = (names) => {
    const chosen = select.value;
    select.replaceChildren(...names.map((one) => make("option", { textContent: one, value: one })));
    if (names.includes(chosen)) select.value = chosen;
    if (names.length && !bar.isConnected) { panel.prepend(bar); add(chart, panel); }
    name();
  };
  select.addEventListener("change", () => { name(); update(chart); });
  list(JSON.parse(panel.dataset.names));
  onChange(ids, async () => {  // metrics of runs in a cluster may arrive while the page is open
    if (panel.querySelector("[data-note]").hidden) return;
    const { names, note } = await fetchJson(`/compare.json?${new URLSearchParams(runs)}`);
    list(names);
    showNote(panel, note);
    if (chart.isVisible) update(chart);
  });
}

// -- heat map --
const RAMP = [[33, 28, 76], [49, 85, 139], [33, 145, 140], [122, 209, 81], [253, 231, 37]];  // as viridis
function ramp(share) {
  const at = Math.min(RAMP.length - 1.001, Math.max(0, share) * (RAMP.length - 1));
  const [low, high] = [RAMP[Math.floor(at)], RAMP[Math.floor(at) + 1]];
  return `rgb(${low.map((value, index) => Math.round(value + (high[index] - value) * (at % 1))).join(" ")})`;
}

class HeatMap {
  constructor(panel) {
    this.panel = panel;
    this.canvas = make("canvas");
    this.tip = make("div", { className: "tip", hidden: true });
    this.words = make("p", { className: "small" });
    this.table = make("details", { className: "small chart" }, make("summary", { textContent: "Table" }));
    this.box = make("div", { className: "plot", hidden: true }, this.canvas, this.tip);
    panel.prepend(this.words, this.box, this.table);
    this.canvas.setAttribute("role", "img");
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    new ResizeObserver(() => this.draw()).observe(panel);
    document.addEventListener("theme", () => this.draw());
    onChange([panel.dataset.liveCharts], () => this.update());
    this.update();
  }

  async update() {
    this.data = await fetchJson(this.panel.dataset.heat);
    const { rows, slowest, median, fastest } = this.data;
    this.panel.querySelector("[data-empty]").hidden = rows.length > 0;
    this.box.hidden = this.table.hidden = rows.length === 0;
    if (!rows.length) return;
    const slow = rows.find((row) => row.rank === slowest && slowest !== null);
    this.words.textContent = slow ? `Rank ${slowest} is the slowest: ${show(slow.median)} s per step, `
      + `${show(slow.median / median)} times the median of ${show(median)} s.`
      : `No rank is slower than the others: ${show(fastest)} to ${show(Math.max(...rows.map((row) => row.median)))} s per step.`;
    this.words.className = slow ? "small warn" : "small";
    this.canvas.setAttribute("aria-label", `Seconds per step of each rank over time. ${this.words.textContent}`);
    this.table.replaceChildren(this.table.firstChild,
      tableOf(["Rank", "Median seconds per step"], rows.map((row) => [row.label, show(row.median)])));
    this.draw();
  }

  draw() {
    if (!this.data?.rows.length || !this.box.clientWidth) return;
    const { rows, times, column_seconds: seconds, lowest, highest, slowest } = this.data;
    const ratio = devicePixelRatio, width = this.box.clientWidth;
    this.left = width < 500 ? 74 : 128;
    this.height = rows.length > 32 ? 12 : 18;
    const whole = rows.length * this.height + 22, cell = (width - this.left) / times.length;
    Object.assign(this.canvas, { width: width * ratio, height: whole * ratio });
    this.canvas.style.height = `${whole}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.textBaseline = "middle";
    const [ink, dim, empty, warn] = ["--text", "--dim", "--sunken", "--warn"].map(colour);
    rows.forEach((row, line) => {
      const top = line * this.height, isSlow = row.rank === slowest && slowest !== null;
      context.font = `${isSlow ? "bold " : ""}${Math.min(12, this.height - 1)}px system-ui`;
      context.fillStyle = isSlow ? warn : ink;
      context.fillText(`${row.label}${isSlow && width >= 500 ? " ◀ slowest" : ""}`, 0, top + this.height / 2, this.left - 8);
      row.values.forEach((value, at) => {
        context.fillStyle = value === null ? empty : ramp(highest > lowest ? (value - lowest) / (highest - lowest) : 0.5);
        context.fillRect(this.left + at * cell, top, Math.ceil(cell * ratio) / ratio, this.height - 1);
      });
    });
    context.font = "11px system-ui";
    context.fillStyle = dim;
    context.fillText("0s", this.left, whole - 9);
    const end = duration(times.length * seconds);
    context.fillText(end, width - context.measureText(end).width, whole - 9);
    const scale = width < 500 ? 28 : 60, [low, high] = [`${show(lowest)} s`, `${show(highest)} s`];
    let at = this.left + (width - this.left) / 2 - scale;
    context.fillText(low, at - 6 - context.measureText(low).width, whole - 9);
    for (let step = 0; step < 2 * scale; step++, at++) {
      context.fillStyle = ramp(step / (2 * scale));
      context.fillRect(at, whole - 13, 1.5, 8);
    }
    context.fillStyle = dim;
    context.fillText(high, at + 6, whole - 9);
  }

  point(event) {
    const { rows, times, column_seconds: seconds } = this.data;
    const row = rows[Math.floor(event.offsetY / this.height)];
    const at = Math.floor((event.offsetX - this.left) / (this.box.clientWidth - this.left) * times.length);
    const value = row?.values[at];
    this.tip.hidden = value === undefined || value === null;
    if (this.tip.hidden) return;
    this.tip.textContent = `${row.label}, after ${duration(at * seconds)}: ${show(value)} s per step`;
    this.tip.style.left = `${Math.min(event.offsetX + 12, this.box.clientWidth - this.tip.offsetWidth)}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }
}

for (const panel of document.querySelectorAll("[data-charts]")) chartsOfRun(panel);
for (const panel of document.querySelectorAll("[data-compare]")) chartsOfComparison(panel);
for (const panel of document.querySelectorAll("[data-heat]")) new HeatMap(panel);

// Live updates, keyboard, times, and the selection of runs. Every page is readable without this script.
// Data from the server reaches the page as text only, or as HTML that the server's templates have escaped.

const $ = (selector, at = document) => at.querySelector(selector);
const $$ = (selector, at = document) => [...at.querySelectorAll(selector)];

// -- colour scheme --
const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark"
  || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
$("#theme").hidden = $("#help").hidden = false;
$("#theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* storage is disabled in this browser */ }
  document.dispatchEvent(new Event("theme"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));

// -- times: the server writes UTC; this browser shows the age, and its own time zone in a tooltip --
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
function age(seconds) {
  const units = [[60, "s"], [60, "min"], [24, "h"], [365, "d"], [1e9, "y"]];
  let left = Math.max(0, Math.round(seconds));
  for (const [size, unit] of units) {
    if (left < size) return unit === "s" && left < 10 ? "now" : `${left} ${unit} ago`;
    left = Math.floor(left / size);
  }
}
export function duration(seconds) {  // as `duration` in cli/formatting.py
  const two = (number) => String(number).padStart(2, "0");
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)}s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${two(Math.floor(whole % 3600 / 60))}m`;
  return `${Math.floor(whole / 86400)}d${two(Math.floor(whole % 86400 / 3600))}h`;
}
function showTimes() {
  for (const one of $$("time[data-ago]")) {
    const at = new Date(one.dateTime);
    const text = age((Date.now() - at) / 1000);
    if (one.textContent !== text) Object.assign(one, { textContent: text, title: full.format(at) });
  }
  for (const one of $$("[data-since]")) one.textContent = duration(Date.now() / 1000 - one.dataset.since);
}
setInterval(showTimes, 1000);

// -- live updates: elements with data-live="RUN", or "*" for any change, receive the event `changed` --
// A stream begins with a change of unknown runs, so that nothing is lost before it was opened.
const live = $("#live");
let stream = null;
let isHeld = false;  // a click on, or a selection of, text that is replaced meanwhile would be lost
for (const name of ["pointerdown", "pointerup", "pointercancel"]) {
  document.addEventListener(name, () => { isHeld = name === "pointerdown"; }, true);
}
function setLive(state) {
  live.hidden = false;
  if (live.dataset.state !== state) live.textContent = live.dataset.state = state;
}
function refresh(element) {
  const every = Number(element.dataset.every ?? 1000);
  const panel = element.closest("details");
  if (element.waits || (panel && !panel.open)) return;
  const wait = Math.max(0, (element.refreshed ?? 0) + every - Date.now());
  element.waits = setTimeout(() => {
    element.waits = null;
    if (isHeld || getSelection().toString()) return refresh(element);
    element.refreshed = Date.now();
    if (element.isConnected) htmx.trigger(element, "changed");
  }, Math.max(wait, element.dataset.live === "*" ? 300 : 50));
}
function changed(runs) {
  for (const element of $$("[data-live]")) {
    if (element.dataset.live === "*" || runs.length === 0 || runs.includes(element.dataset.live)) refresh(element);
  }
  document.dispatchEvent(new CustomEvent("runs-changed", { detail: runs }));
}
function listen() {
  if (stream || document.hidden) return;
  stream = new EventSource("/events");
  stream.onopen = () => setLive("live");
  stream.onerror = () => {
    setLive("reconnecting");
    if (stream.readyState === EventSource.CLOSED) { stream = null; setTimeout(listen, 3000); }
  };
  stream.addEventListener("changed", (event) => changed(JSON.parse(event.data).runs));
}
// Browsers allow six connections to a server: a page that is not visible gives its stream back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { stream?.close(); stream = null; } else { listen(); changed([]); }
});
addEventListener("pagehide", () => { stream?.close(); stream = null; });
addEventListener("pageshow", (event) => { if (event.persisted) { listen(); changed([]); } });

// -- selection of runs for a comparison; kept while filters and pages change --
const selected = new Set();
function showSelection() {
  for (const box of $$("input[name=run]")) box.checked = selected.has(box.value);
  if (!$("#compare")) return;
  $("#compare-button").disabled = selected.size === 0;
  $("#compare-count").textContent = selected.size ? ` ${selected.size}` : "";
  $("#clear").hidden = selected.size === 0;
}
function compare() {
  if (selected.size) location.href = `/compare?${[...selected].map((id) => `run=${encodeURIComponent(id)}`).join("&")}`;
}
document.addEventListener("change", (event) => {
  if (event.target.name !== "run") return;
  selected[event.target.checked ? "add" : "delete"](event.target.value);
  showSelection();
});
$("#compare")?.addEventListener("submit", (event) => { event.preventDefault(); compare(); });
$("#clear")?.addEventListener("click", () => { selected.clear(); showSelection(); });

// -- keyboard --
let prefix = "";
function move(by) {
  const items = $$(".item");
  const now = items.findIndex((item) => item.closest("tr").contains(document.activeElement));
  items[now < 0 ? 0 : Math.min(items.length - 1, Math.max(0, now + by))]?.focus();
}
const actions = {
  "/": () => $("#filter, [name=find]:not([hidden])")?.select(),
  "?": () => $("#keys").showModal(),
  j: () => move(1),
  k: () => move(-1),
  x: () => document.activeElement.closest("tr")?.querySelector("input[name=run]")?.click(),
  c: compare,
  gr: () => { location.href = "/"; },
  gt: () => { location.href = "/targets"; },
  gd: () => { location.href = "/disk"; },
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("dialog")) return;
  if (event.target.matches("input:not([type=checkbox], [type=range]), textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const action = actions[prefix + event.key];
  prefix = event.key === "g" && !prefix ? "g" : "";
  if (action) { event.preventDefault(); action(); }
});
$("#help").addEventListener("click", actions["?"]);

// -- parts of pages that are replaced keep the focus and what was opened --
function openTarget() {
  const part = location.hash && document.getElementById(location.hash.slice(1));
  if (part?.tagName === "DETAILS" && !part.open) { part.open = true; part.scrollIntoView(); }
}
addEventListener("hashchange", openTarget);
let focused = null;
let opened = [];
document.addEventListener("htmx:beforeSwap", (event) => {
  const row = event.target.contains(document.activeElement) && document.activeElement.closest("tr[data-run]");
  focused = row ? [row.dataset.run, document.activeElement.className] : null;
  opened = $$("details[id][open]", event.target).map((one) => one.id);
});
document.addEventListener("htmx:afterSwap", () => {
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  if (focused) $(`tr[data-run="${CSS.escape(focused[0])}"] ${focused[1] ? ".item" : "input"}`)?.focus();
  opened = [];
  focused = null;
  begin();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) navigator.clipboard.writeText(button.dataset.copy).then(() => { button.textContent = "Copied"; });
});

function begin() {
  for (const button of $$("[data-copy]")) button.hidden = false;
  showTimes();
  showSelection();
}
begin();
openTarget();
listen();

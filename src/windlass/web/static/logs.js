// The log viewer: holds a window of at most MAX lines of a log of any size, moved by byte positions.
// Lines are inserted as text, never as HTML; the server has removed control characters and escape sequences.

const MAX = 600;
const STEP = 200;
const FAR = 256 << 10;  // bytes behind the end from which on lines are skipped while following
const $ = (selector, at) => at.querySelector(selector);

class LogView {
  constructor(root) {
    const { log, attempt, rank, begin, end, size, ranks } = root.dataset;
    Object.assign(this, { root, log, attempt, rank, ranks: Number(ranks), waiting: 0, last: Promise.resolve(), stream: null });
    Object.assign(this, { begin: Number(begin), end: Number(end), size: Number(size), found: "" });
    this.list = $(".lines", root);
    this.form = $("form", root);
    this.status = $("[role=status]", root);
    this.hits = $(".hits", root);
    this.position = $("[data-position]", root);
    $("[data-plain]", root)?.remove();
    this.find = this.form.elements.find;
    this.follow = this.form.elements.follow;
    this.find.hidden = this.follow.hidden = false;
    this.form.elements.show.textContent = "Search";
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.search(); });
    for (const name of ["attempt", "rank"]) this.form.elements[name].addEventListener("change", () => this.choose());
    this.follow.addEventListener("click", () => this.setFollow(!this.stream));
    this.list.addEventListener("scroll", () => this.scrolled());
    this.list.addEventListener("keydown", (event) => this.key(event));
    $("input", this.position).addEventListener("change", (event) => this.jump(event.target.value / 1000 * this.size));
    document.addEventListener("visibilitychange", () => this.setStream());
    this.show();
    this.list.scrollTop = this.list.scrollHeight;
    if ("active" in root.dataset) this.setFollow(true);
  }

  /** Whether the chosen log is that of one rank, which has byte positions. */
  get hasPositions() { return this.rank !== ""; }

  url(path, query) {
    const given = { attempt: this.attempt, ...(this.hasPositions ? { rank: this.rank } : {}), ...query };
    return `${this.log}/${path}?${new URLSearchParams(given)}`;
  }

  async fetch(path, query) {
    const response = await fetch(this.url(path, query));
    if (!response.ok) throw new Error(`the server has refused the request (${response.status})`);
    return response.json();
  }

  /** Runs requests one after another; reports a failure below the log. */
  alone(work) {
    this.waiting += 1;
    const end = () => { this.waiting -= 1; this.show(); };
    this.last = this.last.then(work).catch((error) => this.say(error.message)).finally(end);
    return this.last;
  }

  row(line) {
    const row = document.createElement("li");
    const add = (tag, name, text) => {
      const part = row.appendChild(document.createElement(tag));
      part.className = name;
      part.textContent = text;
    };
    add("time", "", new Date(line.time * 1000).toISOString().slice(11, 19));
    if (!this.hasPositions) add("span", `rank c${line.rank % 7}`, line.rank);
    add("span", "text", line.text);
    if (line.offset >= 0) row.dataset.offset = line.offset;
    Object.assign(row, { time: line.time, rank: line.rank });
    return row;
  }

  offset(row) { return Number(row.dataset.offset ?? row.id.slice(1)); }

  replace(window) {
    this.list.replaceChildren(...window.lines.map((line) => this.row(line)));
    Object.assign(this, { begin: window.begin, end: window.end, size: window.size });
    $("[data-empty]", this.root)?.remove();
  }

  append(lines, end) {
    const last = this.list.lastElementChild;  // a line that was incomplete comes again
    if (last && lines.length && lines[0].offset >= 0 && this.offset(last) === lines[0].offset) last.remove();
    this.list.append(...lines.map((line) => this.row(line)));
    this.end = end ?? this.end;
    while (this.list.children.length > MAX) this.list.firstElementChild.remove();
    if (this.hasPositions && this.list.firstElementChild) this.begin = this.offset(this.list.firstElementChild);
  }

  prepend(window) {
    const before = this.list.scrollHeight;
    this.list.prepend(...window.lines.map((line) => this.row(line)));
    this.list.scrollTop += this.list.scrollHeight - before;
    this.begin = window.begin;
    while (this.list.children.length > MAX) {
      const last = this.list.lastElementChild;
      this.end = this.offset(last);
      last.remove();
    }
  }

  scrolled() {
    const below = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight;
    if (this.stream && below > 80) this.setFollow(false);
    if (!this.hasPositions || this.waiting) return;
    if (this.list.scrollTop < 300 && this.begin > 0) {
      this.alone(async () => this.prepend(await this.fetch("lines.json", { before: this.begin, lines: STEP })));
    } else if (below < 300 && this.end < this.size && !this.stream) {
      this.alone(async () => {
        const window = await this.fetch("lines.json", { offset: this.end, lines: STEP });
        const kept = this.list.lastElementChild;
        const seen = kept?.getBoundingClientRect().top;
        this.append(window.lines, window.end);
        if (kept?.isConnected) this.list.scrollTop += kept.getBoundingClientRect().top - seen;
        this.size = window.size;
      });
    }
    this.show();
  }

  key(event) {
    if (!this.hasPositions || !["Home", "End"].includes(event.key)) return;
    event.preventDefault();
    this.jump(event.key === "Home" ? 0 : this.size);
  }

  /** Shows the lines around a byte position. */
  jump(offset, mark = false) {
    this.setFollow(false);
    return this.alone(async () => {
      const at = Math.floor(offset);
      const query = at >= this.size ? {} : { offset: at };
      this.replace(await this.fetch("lines.json", { ...query, lines: STEP }));
      this.list.scrollTop = at >= this.size ? this.list.scrollHeight : 0;
      if (!mark) return;
      this.list.firstElementChild?.classList.add("hit");
      if (this.begin > 0) this.prepend(await this.fetch("lines.json", { before: this.begin, lines: 50 }));
      const hit = $(".hit", this.list);
      if (hit) this.list.scrollTop = hit.offsetTop - this.list.offsetTop - this.list.clientHeight / 3;
    });
  }

  choose() {
    this.attempt = this.form.elements.attempt.value;
    this.rank = this.form.elements.rank.value;
    this.hits.hidden = true;
    const wasLive = this.stream;
    this.setFollow(false);
    return this.alone(async () => {
      this.replace(await this.fetch("lines.json", { lines: STEP }));
      this.list.scrollTop = this.list.scrollHeight;
      this.say(this.list.children.length ? "" : "This rank has not written anything.");
      if (wasLive) this.setFollow(true);
    });
  }

  /** Searches the chosen rank, or each rank in turn, in parts, so that matches show while the search goes on. */
  async search() {
    const text = this.found = this.find.value;
    this.hits.replaceChildren();
    this.hits.hidden = !text;
    if (!text) return this.say("");
    const ranks = this.hasPositions ? [this.rank] : [...Array(this.ranks).keys()];
    let count = 0;
    try {
      for (const rank of ranks) {
        for (let offset = 0; offset !== null && count < MAX; ) {
          const part = await this.fetch("search.json", { rank, text, offset });
          if (this.found !== text) return;
          offset = part.next_offset;
          count += part.matches.length;
          this.hits.append(...part.matches.map((line) => this.hit(line, rank)));
          const share = offset === null ? "" : `, ${Math.floor(100 * offset / part.size)} % of rank ${rank} searched`;
          this.say(`${count} matching line${count === 1 ? "" : "s"}${count >= MAX ? ", more are not shown" : share}`);
        }
      }
    } catch (error) { this.say(error.message); }
  }

  hit(line, rank) {
    const button = document.createElement("button");
    button.type = "button";
    const text = button.appendChild(document.createElement("span"));
    text.className = "cut";
    text.textContent = `${this.hasPositions ? "" : `[${rank}] `}${line.text}`;
    button.addEventListener("click", () => {
      this.form.elements.rank.value = this.rank = String(rank);
      this.jump(line.offset, true);
    });
    return button;
  }

  setFollow(isOn) {
    this.follow.setAttribute("aria-pressed", isOn);
    this.isFollowing = isOn;
    this.setStream();
  }

  /** Opens or closes the stream of new lines; a page that is not visible has none. */
  setStream() {
    const isWanted = this.isFollowing && !document.hidden;
    if (isWanted === Boolean(this.stream)) return;
    if (!isWanted) { this.stream.close(); this.stream = null; return; }
    this.stream = new EventSource(this.url("live", { since: Math.floor(Date.now() / 1000) - 1 }));
    this.alone(() => this.tail());
    this.stream.addEventListener("lines", (event) => {
      const { lines, skipped } = JSON.parse(event.data);
      if (skipped) this.say(`${skipped} lines arrived too fast to be shown here`);
      if (this.hasPositions) this.catchUp();
      else this.add(lines);
    });
    this.stream.addEventListener("end", () => { this.catchUp(); this.setFollow(false); this.say("The run has ended."); });
    this.stream.addEventListener("failed", (event) => { this.setFollow(false); this.say(JSON.parse(event.data).message); });
  }

  async tail() {
    this.replace(await this.fetch("lines.json", { lines: STEP }));
    this.list.scrollTop = this.list.scrollHeight;
  }

  /** Appends the new lines of one rank, with their positions; of very fast output only the last ones. */
  catchUp() {
    if (this.isBehind || !this.hasPositions) return;
    this.isBehind = true;
    this.alone(async () => {
      this.isBehind = false;
      const window = await this.fetch("lines.json", { offset: this.end, lines: MAX });
      if (window.size - window.end > FAR) return this.tail();
      this.append(window.lines, window.end);
      this.size = window.size;
      this.list.scrollTop = this.list.scrollHeight;
      if (window.end < window.size && window.lines.length) this.catchUp();
    });
  }

  /** Appends lines of all ranks, without those that are shown already. */
  add(lines) {
    const rows = [...this.list.children];
    const last = new Map();  // ranks are read one after another: their lines are in order for each rank only
    for (const row of rows) last.set(row.rank, Math.max(row.time, last.get(row.rank) ?? 0));
    const isShown = ({ rank, time, text }) => time < last.get(rank) || (time === last.get(rank) && rows.some(
      (row) => row.rank === rank && row.time === time && $(".text", row).textContent === text));
    this.append(lines.filter((line) => !isShown(line)));
    this.list.scrollTop = this.list.scrollHeight;
  }

  say(text) {
    this.status.textContent = text;
    this.status.hidden = !text;
  }

  show() {
    this.position.hidden = !this.hasPositions || this.size === 0 || (this.begin === 0 && this.end >= this.size);
    const share = this.size ? (this.end >= this.size ? 1 : this.begin / this.size) : 1;
    $("input", this.position).value = Math.round(1000 * share);
    $("output", this.position).textContent = `${(100 * share).toFixed(1)} %`;
  }
}

function begin() {
  for (const root of document.querySelectorAll("[data-log]")) root.view ??= new LogView(root);
}
document.addEventListener("htmx:afterSettle", begin);
begin();

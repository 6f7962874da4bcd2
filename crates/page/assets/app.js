// The page: the list of paths, the selected path, and its details.

import { Composer } from "./composer.js";
import { Failure, get, receive, takeToken } from "./api.js";
import { Details } from "./details.js";
import { Editor } from "./editor.js";
import { figuresOf } from "./figures.js";
import { age, byteRate, count, make, rate, setRows, setText, svg, visible } from "./format.js";
import { Graph } from "./graph.js";
import { Tracer } from "./tracer.js";

const TREND = 60;
const HIDDEN_MS = 3000;
const NARROW = matchMedia("(max-width: 760px)");
const by = (id) => document.getElementById(id);

const state = {
  number: null, plan: null, planOf: null, before: null, figures: null, what: null,
  rows: new Map(), trends: new Map(), stream: null, latest: null, asking: false,
};

const graph = new Graph(by("graph"), select);
const details = new Details(by("details"), { select });

// --- The stream of figures ------------------------------------------------------------------

async function follow() {
  state.stream?.abort();
  const stream = new AbortController();
  state.stream = stream;
  const query = state.number == null ? "" : `?path=${state.number}`;
  let wait = 500;
  while (!stream.signal.aborted) {
    try {
      await receive(`/api/live${query}`, stream.signal, (event, value) => {
        wait = 500;
        if (event === "figures" && !stream.signal.aborted) take(value);
      });
    } catch (error) {
      if (stream.signal.aborted) return;
      if (error instanceof Failure && error.status === 401) {
        showStatus("refused", "not admitted");
        showFailure(error.message);
        return;
      }
    }
    if (stream.signal.aborted) return;
    showStatus("gone", "no connection");
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, 8000);
  }
}

// Nobody looks at a hidden page, so that it lets the paths go.
let hiding = null;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (!document.hidden) {
    if (!state.stream || state.stream.signal.aborted) follow();
    return;
  }
  hiding = setTimeout(() => {
    state.stream?.abort();
    details.release();
    showStatus("wait", "paused");
  }, HIDDEN_MS);
});

function take(value) {
  state.latest = value;
  const failed = value.failure != null;
  showStatus(failed ? "gone" : "live", failed ? "no daemon" : "live");
  showFailure(value.failure);
  if (value.daemon) setText(by("daemon"), `daemon ${value.daemon.version}, process ${value.daemon.process}`);
  showPaths(value);
  if (state.number == null) {
    const own = value.paths.filter((path) => path.yours);
    const wanted = Number(new URLSearchParams(location.hash.slice(1)).get("path"));
    const first = own.find((path) => path.number === wanted) ?? (NARROW.matches ? null : own[0]);
    if (first) choose(first.number);
    return;
  }
  showPath(value);
}

function showStatus(kind, text) {
  const status = by("status");
  if (status.dataset.state !== kind) status.dataset.state = kind;
  setText(status.firstElementChild, text);
}

function showFailure(text) {
  by("failure").hidden = !text;
  setText(by("failure"), text ?? "");
}

// --- The list -------------------------------------------------------------------------------

function showPaths(value) {
  const list = by("paths");
  const now = value.time_ms / 1000;
  const seen = new Set();
  for (const path of value.paths) {
    seen.add(path.number);
    let row = state.rows.get(path.number);
    if (!row) {
      row = makeRow(path);
      state.rows.set(path.number, row);
    }
    updateRow(row, path, now);
    if (list.children[seen.size - 1] !== row.item) list.insertBefore(row.item, list.children[seen.size - 1] ?? null);
  }
  for (const [number, row] of state.rows) {
    if (seen.has(number)) continue;
    if (row.item.contains(document.activeElement)) by("main").focus();
    row.item.remove();
    state.rows.delete(number);
    state.trends.delete(number);
  }
  setText(by("count"), value.paths.length ? String(value.paths.length) : "");
  by("empty").hidden = value.paths.length > 0 || value.failure != null;
  showEnded(value.ended);
}

function makeRow(path) {
  const parts = {
    name: make("span", { class: "row-name" }), user: make("span", { class: "row-user muted" }),
    rate: make("span", { class: "row-rate" }), line: make("span", { class: "row-line" }),
    note: make("span", { class: "row-note" }), trend: svg("polyline", { points: "" }),
  };
  const button = make("button", { type: "button", class: "row" },
    make("span", { class: "row-top" }, parts.name, parts.user, parts.rate),
    parts.line,
    make("span", { class: "row-end" },
      svg("svg", { class: "trend", viewBox: `0 0 ${TREND - 1} 20`, preserveAspectRatio: "none", "aria-hidden": "true" }, parts.trend),
      parts.note));
  button.addEventListener("click", () => choose(path.number, true));
  return { ...parts, button, item: make("li", {}, button) };
}

function updateRow(row, path, now) {
  setText(row.name, path.name ?? `path ${path.number}`);
  setText(row.user, path.user);
  setText(row.line, path.line ?? "");
  row.button.disabled = !path.yours;
  row.button.setAttribute("aria-current", String(path.number === state.number));
  row.button.classList.toggle("loses", path.lost_rate > 0);
  const silent = path.state === "silent";
  setText(row.rate, silent ? "silent" : path.state === "hidden" ? "" : rate(path.rate.blocks));
  const parts = [];
  if (path.lost > 0) parts.push(`${count(path.lost)} lost`);
  if (path.started) parts.push(age(now - path.started));
  setText(row.note, parts.join(" · "));
  row.note.classList.toggle("bad", path.lost > 0);
  const trend = state.trends.get(path.number) ?? [];
  trend.push(path.rate.blocks);
  if (trend.length > TREND) trend.shift();
  state.trends.set(path.number, trend);
  const most = Math.max(1, ...trend);
  const begin = TREND - trend.length;
  row.trend.setAttribute("points", trend.map((n, at) => `${begin + at},${(18.5 - (13 * n) / most).toFixed(1)}`).join(" "));
}

function showEnded(ended) {
  by("ended").hidden = ended.length === 0;
  const list = by("ended").querySelector("ul");
  const key = ended.map((end) => `${end.path.number} ${end.ended?.status}`).join();
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...[...ended].reverse().map((end) => {
    const name = make("strong", {}, visible(end.path.name ?? `path ${end.path.number}`));
    const failed = end.ended != null && end.ended.status !== 0;
    return make("li", { class: failed ? "bad" : null }, name, ` ${visible(end.ended?.report ?? "ended")}`);
  }));
}

// --- The selected path ----------------------------------------------------------------------

function choose(number, shows = false) {
  if (shows) {
    document.body.dataset.view = "path";
    if (NARROW.matches) by("main").focus();
  }
  if (state.number === number) return;
  Object.assign(state, { number, plan: null, planOf: null, before: null, figures: null, what: null });
  history.replaceState(null, "", `#path=${number}`);
  for (const [known, row] of state.rows) row.button.setAttribute("aria-current", String(known === number));
  details.release();
  follow();
}

by("back").addEventListener("click", () => {
  document.body.dataset.view = "list";
  state.rows.get(state.number)?.button.focus();
});

function showPath(value) {
  const path = value.paths.find((known) => known.number === state.number);
  by("path").hidden = !path;
  by("details").hidden = !path || !state.plan;
  by("choose").hidden = path != null;
  if (!path) {
    setText(by("choose"), `Path ${state.number} has ended. Choose another.`);
    document.title = "Streamline";
    return;
  }
  const name = path.name ?? `path ${path.number}`;
  document.title = `${visible(name)} – Streamline`;
  setText(by("path-name"), name);
  setText(by("path-about"), [
    `no ${path.number}`, path.user, `process ${path.process}`,
    path.started ? `running ${age(value.time_ms / 1000 - path.started)}` : null,
  ].filter((part) => part).join(" · "));
  setText(by("request"), path.line ?? "");
  setRows(by("totals"), [
    ["blocks", path.state === "silent" ? "silent" : rate(path.rate.blocks)],
    ["bytes", byteRate(path.rate.bytes)],
    ["lost", path.lost == null ? "unknown" : count(path.lost), path.lost > 0 ? "bad" : ""],
  ]);
  if (value.selected) showFigures(value.selected, path);
}

async function showFigures(selected, path) {
  if (state.planOf !== selected.plan) {
    if (state.asking) return;
    state.asking = true;
    try {
      const plan = await get(`/api/plan?path=${selected.number}`);
      if (selected.number !== state.number) return;
      Object.assign(state, { plan, planOf: selected.plan, before: null });
      by("details").hidden = false;
      graph.draw(plan, NARROW.matches);
      select(state.what);
      editor.planChanged(selected.number);
    } catch (error) {
      showStatus("wait", error.message);
      return;
    } finally {
      state.asking = false;
    }
  }
  const { counters, by_request: reasons } = selected;
  // The same counters are sent again until the path has replied.
  if (state.before?.elapsed_ns === counters.elapsed_ns) return;
  state.figures = figuresOf(counters, reasons, state.before, state.plan);
  state.before = counters;
  graph.update(state.figures);
  details.update(state.figures, { path, time: state.latest.time_ms });
}

// Shows the details of a node, of an edge, or of the path.
function select(what) {
  const same = what && state.what && what.kind === state.what.kind && what.index === state.what.index;
  const known = what?.kind === "node" ? state.plan?.path.nodes : state.plan?.path.links;
  state.what = what && known?.[what.index] ? what : null;
  graph.mark(state.what);
  if (!state.plan) return;
  details.show(state.what, state.plan, state.number);
  if (state.figures) details.update(state.figures, { time: state.latest.time_ms, path: state.latest.paths.find((path) => path.number === state.number) });
  if (what && !same && NARROW.matches) by("details").scrollIntoView({ block: "start" });
}

// Draws the graph anew where the window gets another width.
let drawnWidth = 0;
new ResizeObserver(([{ contentRect }]) => {
  if (!state.plan || contentRect.width === drawnWidth) return;
  drawnWidth = contentRect.width;
  graph.draw(state.plan, NARROW.matches);
  if (state.figures) graph.update(state.figures);
}).observe(by("graph"));

addEventListener("hashchange", () => {
  const wanted = Number(new URLSearchParams(location.hash.slice(1)).get("path"));
  if (state.latest?.paths.some((path) => path.number === wanted && path.yours)) choose(wanted, true);
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.what && !event.defaultPrevented) {
    const was = graph.current();
    select(null);
    was?.focus();
  }
});

new Composer((number) => choose(number, true));
const editor = new Editor(() => state);
new Tracer(() => state.number);
takeToken();
follow();

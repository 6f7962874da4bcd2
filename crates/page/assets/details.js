// The panel of details: of the path, of a node, or of an edge.

import { post, receive } from "./api.js";
import { Captures } from "./captures.js";
import { byteRate, bytes, count, make, rate, setRows, setText, time, visible } from "./format.js";
import { Plot } from "./plot.js";

const MESSAGES_MAX = 30;

export class Details {
  constructor(root, { select }) {
    this.root = root;
    this.select = select;
    this.what = null;
    this.plot = null;
  }

  // Builds the panel for what is selected; `what` is null for the path.
  show(what, plan, number) {
    this.release();
    Object.assign(this, { what, plan, number });
    const title = make("h2", { id: "details-title" });
    const close = what ? make("button", { type: "button", class: "close", "aria-label": "Close, show the path" }, "×") : null;
    close?.addEventListener("click", () => this.select(null));
    this.facts = make("dl", { class: "facts" });
    this.drops = make("dl", { class: "facts" });
    const head = make("div", { class: "details-head" }, title, close);
    this.root.replaceChildren(head);
    const parts = what?.kind === "node" ? this.nodeParts(what.index, title)
      : what?.kind === "edge" ? this.edgeParts(what.index, title) : this.pathParts(title);
    this.root.append(...parts.filter((part) => part));
  }

  nodeParts(index, title) {
    const node = this.plan.path.nodes[index];
    const about = this.plan.nodes[index];
    setText(title, node.name);
    const given = (about?.arguments ?? []).filter((argument) => argument.value !== "");
    const list = make("dl", { class: "facts" });
    setRows(list, given.map(({ name, value }) => [name, value]));
    const where = make("p", {}, make("strong", {}, visible(node.space)),
      about?.because ? ` — ${visible(about.because)}` : "");
    const elsewhere = make("ul", { class: "plain" }, ...(about?.elsewhere ?? []).map((why) => make("li", {}, visible(why))));
    return [
      section("Counters", this.facts),
      section("Drops", this.drops),
      given.length ? section("Arguments", list) : null,
      section("Last messages", ...this.messageParts(node.name)),
      section("Capture", ...this.captureParts(node.name)),
      section("Where it runs", where, this.costParts(node.name), about?.elsewhere?.length ? make("p", { class: "muted" }, "Not elsewhere:") : null, elsewhere),
    ];
  }

  // The messages that leave a node, tapped from the moment somebody asks until nobody looks.
  messageParts(name) {
    const list = make("ul", { class: "plain messages", tabindex: 0, "aria-label": "Messages" });
    list.hidden = true;
    const said = make("p", { class: "muted", role: "status" });
    const button = make("button", { type: "button", class: "action", "aria-pressed": "false" }, "Show");
    button.addEventListener("click", () => {
      const tapped = this.tap != null;
      this.untap();
      button.setAttribute("aria-pressed", String(!tapped));
      setText(button, tapped ? "Show" : "Stop");
      if (tapped) return;
      const tap = new AbortController();
      this.tap = tap;
      list.hidden = false;
      setText(said, "");
      const query = new URLSearchParams({ path: this.number, node: name });
      receive(`/api/messages?${query}`, tap.signal, (_, value) => {
        list.prepend(make("li", {}, visible(JSON.stringify(value)).slice(0, 2000)));
        while (list.children.length > MESSAGES_MAX) list.lastElementChild.remove();
      }).then(() => setText(said, "the tap has ended")).catch((error) => {
        if (!tap.signal.aborted) setText(said, error.message);
      });
    });
    return [button, said, list];
  }

  // The cost of a node in each space that can run it, as `explain` gives them for its request.
  costParts(name) {
    const list = make("dl", { class: "facts costs" });
    const line = this.plan.path.line;
    if (this.explained?.line !== line) this.explained = { line, plan: post("/api/explain", { line }) };
    this.explained.plan.then((plan) => {
      const filter = plan.filters.find((known) => known.name === name);
      const candidates = (filter?.candidates ?? []).filter((known) => known.cost_ns != null);
      setRows(list, candidates.map((known) => [`cost in ${known.space}`, `${time(known.cost_ns)} a block`]));
    }).catch(() => {});
    return list;
  }

  captureParts(node) {
    this.captures = new Captures(this.number, this.plan.path.name, node);
    return this.captures.parts;
  }

  untap() {
    this.tap?.abort();
    this.tap = null;
  }

  edgeParts(index, title) {
    const link = this.plan.path.links[index];
    const name = (node) => visible(this.plan.path.nodes[node]?.name);
    title.replaceChildren(`${name(link.from)} → ${name(link.to)}`);
    const plot = make("div", { class: "plot" });
    this.plot = new Plot(plot, this.number, index);
    return [section("Rate", plot), section("Counters", this.facts), section("Drops", this.drops)];
  }

  pathParts(title) {
    setText(title, "Path");
    const plot = make("div", { class: "plot" });
    this.plot = new Plot(plot, this.number, null);
    this.spaces = make("ul", { class: "plain spaces" });
    this.adapted = make("ul", { class: "plain" });
    return [
      section("Rate", plot), section("Losses", this.drops),
      section("Spaces", this.spaces), section("Capture", ...this.captureParts(null)),
      section("Changes it made itself", this.adapted),
    ];
  }

  update(figures, { path, time: now }) {
    if (this.what?.kind === "node") this.updateNode(figures);
    else if (this.what?.kind === "edge") this.updateEdge(figures, now);
    else this.updatePath(figures, path, now);
  }

  updateNode(figures) {
    const now = figures.nodes.get(this.what.index);
    if (!now) return;
    setRows(this.facts, [
      ["rate", `${rate(now.rate)} · ${byteRate(now.byteRate)}`],
      ["received", `${count(now.blocks)} · ${bytes(now.bytes)}`],
      now.made && ["made", count(now.made)],
      ["passed on", count(now.passed)],
      now.unselected && ["selected by no arc", count(now.unselected)],
      now.consumed && ["used up", count(now.consumed)],
      now.held && ["held", count(now.held)],
      ["time per block", now.blockNs == null ? "not measured" : time(now.blockNs)],
      ["blocks per call", now.calls > 0 ? (now.blocks / now.calls).toFixed(1) : "–"],
    ]);
    showDrops(this.drops, now.drops, figures.reasons);
  }

  updateEdge(figures, at) {
    const now = figures.edges.get(this.what.index);
    if (!now) return;
    const link = this.plan.path.links[this.what.index];
    const about = [["kind", link.transport], ["classes", link.classes || "any but 0"]];
    setRows(this.facts, [
      ...about,
      ["rate", `${rate(now.rate)} · ${byteRate(now.byteRate)}`],
      ["put in", `${count(now.put.blocks)} · ${bytes(now.put.bytes)}`],
      ["taken out", count(now.taken.blocks)],
      link.room != null && ["in the ring", `${count(now.resident)} of ${count(now.room)}`],
      now.size?.grown > 0 && ["grown", `${count(now.size.grown)} times`],
      now.size?.shrunk > 0 && ["shrunk", `${count(now.size.shrunk)} times`],
      now.size?.because && ["size because", now.size.because],
    ]);
    showDrops(this.drops, now.drops, figures.reasons);
    this.plot?.push(at, now.rate, now.byteRate, now.lostRate);
  }

  updatePath(figures, path, at) {
    const losses = [];
    for (const source of figures.sources) {
      for (const { why, blocks } of source.losses) if (blocks !== 0) losses.push([`before ${source.name} (${why})`, blocks]);
    }
    const links = this.plan.path.links;
    const name = (node) => this.plan.path.nodes[node]?.name;
    const lost = (place, drops) => {
      for (const [why, blocks] of drops) if (!figures.reasons.has(why) && blocks) losses.push([`${place} (${why})`, blocks]);
    };
    // The rings between a filter and its replicas are no edge of the plan.
    const between = (link) => (link ? `between ${name(link.from)} and ${name(link.to)}` : "between replicas");
    for (const [index, edge] of figures.edges) lost(between(links[index]), edge.drops);
    for (const [index, node] of figures.nodes) lost(`in ${name(index)}`, node.drops);
    setRows(this.drops, losses.length
      ? losses.map(([place, blocks]) => [place, blocks == null ? "no counter" : count(blocks), blocks == null ? "" : "bad"])
      : [["none", "0"]]);
    const spaces = figures.counters.spaces ?? [];
    sync(this.spaces, spaces, (space) => [
      visible(space.name),
      [space.state, space.waits && `for ${space.waits}`, space.processor != null && `on processor ${space.processor}`,
        `${time(space.processor_ns)} of processor time`, space.memory != null && bytes(space.memory), space.late]
        .filter((part) => part).map(visible).join(" · "),
    ]);
    const adapted = figures.counters.adapted ?? [];
    this.adapted.parentElement.hidden = adapted.length === 0;
    sync(this.adapted, adapted, (text) => [null, visible(text)]);
    if (path) this.plot?.push(at, path.rate.blocks, path.rate.bytes, path.lost_rate);
  }

  // Lets go what costs a path something while nobody looks.
  release() {
    this.plot?.destroy();
    this.plot = null;
    this.captures?.release();
    this.captures = null;
    this.untap();
  }
}

function section(title, ...parts) {
  return make("section", {}, make("h3", {}, title), ...parts);
}

function showDrops(list, drops, reasons) {
  const known = [...drops].filter(([, blocks]) => blocks !== 0);
  setRows(list, known.length
    ? known.map(([why, blocks]) => [why, blocks == null ? "no counter" : count(blocks), blocks == null || reasons.has(why) ? "" : "bad"])
    : [["none", "0"]]);
}

// Shows a text for each item of a list, with a name in front if it has one.
function sync(list, items, textsOf) {
  while (list.children.length > items.length) list.lastElementChild.remove();
  items.forEach((item, at) => {
    const [name, text] = textsOf(item);
    let row = list.children[at];
    if (!row) {
      row = make("li", {}, make("strong"), make("span"));
      list.append(row);
    }
    setText(row.firstElementChild, name ?? "");
    setText(row.lastElementChild, text);
  });
}

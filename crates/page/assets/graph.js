// The graph of a path, drawn as SVG: nodes, edges as wide as their rate, rings with their fill.

import { layOut } from "./layout.js";
import { rate, setText, short, svg, visible } from "./format.js";

const NAME_MAX = 17;
// A wider graph is scrolled rather than drawn smaller.
const SCALE_MIN = 0.75;
const PADDING = 12;

export class Graph {
  constructor(container, select) {
    this.container = container;
    this.select = select;
    this.nodes = new Map();
    this.edges = new Map();
    this.selected = null;
    container.addEventListener("keydown", (event) => this.move(event));
  }

  // Draws a plan anew.
  draw(plan, vertical) {
    const nodes = plan.path.nodes.map((node, at) => ({ ...node, inside: plan.nodes[at]?.inside }));
    const room = this.container.clientWidth - 2 * PADDING;
    const layout = layOut(nodes, plan.path.links, vertical, room);
    this.layout = layout;
    this.nodes.clear();
    this.edges.clear();
    const focused = this.container.contains(document.activeElement);
    const scale = Math.min(1, Math.max(SCALE_MIN, room / layout.width));
    const root = svg("svg", {
      width: layout.width * scale, height: layout.height * scale, viewBox: `0 0 ${layout.width} ${layout.height}`,
      role: "group", "aria-label": "Filters and edges of the path; arrow keys move along them",
    });
    for (const lane of layout.lanes) root.append(drawLane(lane));
    const over = svg("g");
    for (const edge of layout.edges) this.drawEdge(root, over, edge, plan);
    for (const node of layout.nodes) this.drawNode(over, node, plan);
    root.append(over);
    this.container.replaceChildren(root);
    this.mark(this.selected);
    if (focused) this.current()?.focus();
  }

  drawNode(root, node, plan) {
    const links = plan.path.links;
    const source = !links.some((link) => link.to === node.index);
    const sink = !links.some((link) => link.from === node.index);
    const name = visible(node.name);
    const shown = name.length > NAME_MAX ? `${name.slice(0, NAME_MAX - 1)}…` : name;
    const kind = source ? "source" : sink ? "sink" : "filter";
    const count = svg("text", { class: "node-rate", x: node.width / 2, y: 36 });
    const replicas = node.copies?.length > 1
      ? svg("text", { class: "node-copies", x: node.width - 8, y: 15 }, `×${node.copies.length}`)
      : null;
    const group = svg("g", {
      class: `node ${kind}`, "aria-label": `${shown}, in ${visible(node.space)}`, transform: `translate(${node.x} ${node.y})`, role: "button", tabindex: -1,
    },
      svg("rect", { class: "box", width: node.width, height: node.height, rx: 7 }),
      source || sink
        ? svg("rect", { class: "stripe", x: source ? 0 : node.width - 4, y: 8, width: 4, height: node.height - 16, rx: 2 })
        : null,
      svg("text", { class: "node-name", x: node.width / 2, y: 19 }, shown), " ", replicas, " ", count);
    root.append(group);
    const key = `node ${node.index}`;
    this.nodes.set(node.index, { group, count, node, name, key, labelled: replicas ? `${shown} ${replicas.textContent}` : shown });
    this.listen(group, { kind: "node", index: node.index });
  }

  drawEdge(root, over, edge, plan) {
    const name = `${visible(plan.path.nodes[edge.from].name)} to ${visible(plan.path.nodes[edge.to].name)}`;
    const line = svg("path", { class: "line", d: edge.path });
    const at = labelPlaces(edge, this.layout.vertical);
    const label = svg("text", { class: "edge-rate", ...at.rate });
    const group = svg("g", { class: `edge ${edge.back ? "back" : ""}`, "aria-label": `Edge from ${name}`, role: "button", tabindex: -1 },
      svg("path", { class: "hit", d: edge.path }), line);
    root.append(group);
    const parts = svg("g", { class: "edge-labels", "aria-hidden": "true" }, label);
    const known = { group, line, label, edge, name, key: `edge ${edge.index}` };
    if (edge.room != null) {
      known.ring = drawRing(edge.label, at.ring);
      parts.append(known.ring.group);
    }
    if (edge.classes && edge.classes !== "all") {
      parts.append(svg("text", { class: "classes", ...at.classes }, `|${short12(visible(edge.classes))}`));
    }
    over.append(parts);
    this.edges.set(edge.index, known);
    this.listen(group, { kind: "edge", index: edge.index });
  }

  listen(group, what) {
    group.addEventListener("click", () => this.select(what));
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.select(what);
      }
    });
  }

  // Shows figures in place.
  update(figures) {
    let most = 1;
    for (const index of this.edges.keys()) most = Math.max(most, figures.edges.get(index)?.rate ?? 0);
    for (const [index, known] of this.edges) {
      const now = figures.edges.get(index);
      if (!now) continue;
      known.line.style.strokeWidth = `${width(now.rate, most)}px`;
      known.group.classList.toggle("idle", now.rate === 0);
      known.group.classList.toggle("loses", now.lostRate > 0);
      known.group.classList.toggle("lost", now.lost > 0);
      setText(known.label, now.rate > 0 ? rate(now.rate) : "");
      if (known.ring) fillRing(known.ring, now);
      const lost = now.lost > 0 ? `, ${now.lost} lost` : "";
      const inside = known.ring ? `, ring ${now.resident} of ${now.room}` : "";
      known.group.setAttribute("aria-label", `Edge from ${known.name}, ${rate(now.rate)}${inside}${lost}`);
    }
    for (const [index, known] of this.nodes) {
      const now = figures.nodes.get(index);
      if (!now) continue;
      const lost = now.lost > 0 ? ` · lost ${short(now.lost)}` : "";
      const shown = rate(now.rate) + lost;
      setText(known.count, shown);
      known.group.classList.toggle("loses", now.lostRate > 0);
      known.group.classList.toggle("lost", now.lost > 0);
      known.group.setAttribute("aria-label", `${known.labelled} ${shown}, in ${visible(known.node.space)}`);
    }
  }

  // Marks what is selected. Exactly one element can be reached by Tab.
  mark(selected) {
    this.selected = selected;
    const all = [...this.nodes.values(), ...this.edges.values()];
    const key = selected ? `${selected.kind} ${selected.index}` : null;
    let reachable = null;
    for (const known of all) {
      const is = known.key === key;
      known.group.setAttribute("aria-pressed", String(is));
      known.group.setAttribute("tabindex", "-1");
      if (is) reachable = known;
    }
    (reachable ?? all[0])?.group.setAttribute("tabindex", "0");
  }

  current() {
    return this.container.querySelector('[tabindex="0"]');
  }

  // Moves the focus by arrow keys: along the flow from node to edge to node, across it to siblings.
  move(event) {
    const keys = this.layout?.vertical
      ? { ArrowDown: "next", ArrowUp: "back", ArrowRight: "over", ArrowLeft: "under" }
      : { ArrowRight: "next", ArrowLeft: "back", ArrowDown: "over", ArrowUp: "under" };
    const way = keys[event.key];
    const all = [...this.nodes.values(), ...this.edges.values()];
    const known = all.find((one) => one.group === event.target);
    if (!way || !known) return;
    event.preventDefault();
    const to = this.neighbour(known, way);
    if (!to) return;
    for (const one of all) one.group.setAttribute("tabindex", one === to ? "0" : "-1");
    to.group.focus();
    to.group.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  neighbour(known, way) {
    const edges = [...this.edges.values()];
    if (known.edge) {
      if (way === "next") return this.nodes.get(known.edge.to);
      if (way === "back") return this.nodes.get(known.edge.from);
      const siblings = edges.filter((one) => one.edge.from === known.edge.from);
      return siblings[siblings.indexOf(known) + (way === "over" ? 1 : -1)];
    }
    if (way === "next") return edges.find((one) => one.edge.from === known.node.index);
    if (way === "back") return edges.find((one) => one.edge.to === known.node.index);
    const axis = this.layout.vertical ? "x" : "y";
    const along = this.layout.vertical ? "y" : "x";
    const sign = way === "over" ? 1 : -1;
    const aside = [...this.nodes.values()].filter((one) => (one.node[axis] - known.node[axis]) * sign > 0);
    const far = (one) => Math.abs(one.node[along] - known.node[along]) + Math.abs(one.node[axis] - known.node[axis]) * 2;
    return aside.sort((a, b) => far(a) - far(b))[0];
  }
}

// Places of the texts at an edge: above and below it, or beside it if blocks flow down. Classes are on
// the side to which the edge turns.
function labelPlaces({ label, classesAt, start, room }, vertical) {
  const ringed = room != null;
  const { x, y, turn } = classesAt;
  if (vertical) {
    return {
      rate: { x: label.x + 9, y: label.y + (ringed ? -9 : 4), "text-anchor": "start" },
      ring: { x: 51, y: 9, "text-anchor": "start" },
      classes: { x: x + (turn > 0 ? 9 : -9), y: y + 4, "text-anchor": turn > 0 ? "start" : "end" },
    };
  }
  return {
    rate: { x: label.x, y: label.y - 9, "text-anchor": "middle" },
    ring: { x: 23, y: 20, "text-anchor": "middle" },
    classes: { x: start.x + 6, y: y + (turn < 0 ? -9 : 16), "text-anchor": "start" },
  };
}

const short12 = (text) => (text.length > 12 ? `${text.slice(0, 11)}…` : text);

// Width of an edge in pixels, between 1.5 and 10: logarithmic, because rates differ by decades.
function width(now, most) {
  if (now <= 0) return 1.5;
  return 2 + 8 * (Math.log1p(now) / Math.log1p(most)) ** 2;
}

function drawLane(lane) {
  const kind = /^kernel/.test(lane.name) ? "kernel" : /^thread/.test(lane.name) ? "thread" : "process";
  return svg("g", { class: `lane ${kind}` },
    svg("rect", { x: lane.x + 1, y: lane.y + 1, width: lane.width - 2, height: lane.height - 2, rx: 9 }),
    svg("text", { x: lane.x + 12, y: lane.y + 17 }, visible(lane.name)));
}

function drawRing(at, textAt) {
  const [width, height] = [46, 9];
  const bar = svg("rect", { class: "ring-fill", x: 1, y: 1, width: 0, height: height - 2, rx: 3 });
  const text = svg("text", { class: "ring-text", ...textAt });
  const group = svg("g", { class: "ring", transform: `translate(${at.x - width / 2} ${at.y - height / 2})` },
    svg("rect", { class: "ring-box", width, height, rx: 4 }), bar, text);
  return { group, bar, text, width };
}

function fillRing(ring, now) {
  const share = now.room > 0 ? Math.min(1, now.resident / now.room) : 0;
  ring.bar.setAttribute("width", Math.round(share * (ring.width - 2) * 10) / 10);
  ring.group.classList.toggle("full", share > 0.8);
  setText(ring.text, `${short(now.resident)}/${short(now.room)}`);
}

// Positions of the nodes and edges of a path: ranks along the flow, and a lane for each space.
//
// A pure function of the plan. Blocks flow to the right, or down if `vertical` is true. Ranks move
// closer together where the graph is wider than `room` pixels. Lanes whose ranks do not overlap
// share a row, so that a path that passes through one space after the other is one straight line.

const SIZE = { along: 132, across: 46 };
const GAP = { along: 96, least: 60, across: 20 };
const LANE = { title: 22, pad: 12 };

export function layOut(nodes, links, vertical, room) {
  const drawn = nodes.map((node, index) => ({ ...node, index })).filter((node) => node.inside == null);
  const edges = links.map((link, index) => ({ ...link, index, back: link.transport === "back" }));
  const ranks = rankOf(drawn, edges);
  const last = Math.max(0, ...ranks.values());
  const form = vertical
    ? { vertical, size: { along: SIZE.across, across: 118 }, gap: { along: 62, across: 14 } }
    : { vertical, size: SIZE, gap: { along: gapFor(room, last), across: GAP.across } };
  const lanes = lanesOf(drawn, edges, ranks);
  const cells = cellsOf(drawn, edges, ranks, lanes);
  orderCells(cells);
  const rows = rowsOf(cells, lanes, form);
  const places = placeCells(cells, rows, form);
  const along = last * (form.size.along + form.gap.along) + form.size.along + 2 * LANE.pad;
  const across = rows.reduce((sum, row) => sum + row.extent, 0);
  const title = vertical ? LANE.title : 0;
  return {
    vertical,
    nodes: drawn.map((node) => ({ ...node, ...places.get(node.index) })),
    lanes: lanes.map((lane) => ({ name: lane.name, ...laneBox(lane, rows[lane.row], last, form) })),
    edges: edges.map((edge) => routeOf(edge, places, form)).filter((route) => route),
    width: vertical ? across : along,
    height: vertical ? along + title : across,
  };
}

// The gap between two ranks with which `last + 1` ranks fit into `room` pixels, if it is not too small.
function gapFor(room, last) {
  const free = room - (last + 1) * SIZE.along - 2 * LANE.pad;
  return last ? Math.min(GAP.along, Math.max(GAP.least, free / last)) : GAP.along;
}

// The rank of a node is the length of the longest way from a source.
function rankOf(nodes, edges) {
  const ranks = new Map(nodes.map((node) => [node.index, 0]));
  const forward = edges.filter((edge) => !edge.back && ranks.has(edge.from) && ranks.has(edge.to));
  for (let pass = 0; pass < nodes.length; pass += 1) {
    let changed = false;
    for (const edge of forward) {
      const least = ranks.get(edge.from) + 1;
      if (ranks.get(edge.to) < least && least <= nodes.length) {
        ranks.set(edge.to, least);
        changed = true;
      }
    }
    if (!changed) break;
  }
  return ranks;
}

// Lanes in the order in which blocks reach them, each in a row that is free at its ranks: that of a
// lane before it, if possible.
function lanesOf(nodes, edges, ranks) {
  const lanes = new Map();
  for (const node of nodes) {
    const rank = ranks.get(node.index);
    const lane = lanes.get(node.space) ?? { name: node.space, first: rank, last: rank };
    lane.first = Math.min(lane.first, rank);
    lane.last = Math.max(lane.last, rank);
    lanes.set(node.space, lane);
  }
  const order = [...lanes.values()].sort((a, b) => a.first - b.first || a.last - b.last);
  const spaces = new Map(nodes.map((node) => [node.index, node.space]));
  const rows = [];
  for (const lane of order) {
    const before = edges.filter((edge) => spaces.get(edge.to) === lane.name).map((edge) => lanes.get(spaces.get(edge.from))?.row);
    const free = (row) => row.every((other) => other.last < lane.first || lane.last < other.first);
    const wanted = before.find((row) => row != null && free(rows[row]));
    const any = rows.findIndex(free);
    lane.row = wanted ?? (any >= 0 && !before.length ? any : rows.length);
    (rows[lane.row] ??= []).push(lane);
  }
  return order;
}

// A cell is a node, or the passage of an edge between two ranks that are not neighbours.
function cellsOf(nodes, edges, ranks, lanes) {
  const row = new Map(lanes.map((lane) => [lane.name, lane.row]));
  const cells = nodes.map((node) => ({
    node: node.index, rank: ranks.get(node.index), row: row.get(node.space), before: [],
  }));
  const of = new Map(cells.map((cell) => [cell.node, cell]));
  for (const edge of edges) {
    const [from, to] = [of.get(edge.from), of.get(edge.to)];
    if (!from || !to || edge.back) continue;
    let last = from;
    for (let rank = from.rank + 1; rank < to.rank; rank += 1) {
      const passage = { edge: edge.index, rank, row: to.row, before: [last] };
      cells.push(passage);
      last = passage;
    }
    to.before.push(last);
  }
  return cells;
}

// Gives each cell a track in its row, near the cells before it.
function orderCells(cells) {
  const groups = new Map();
  for (const cell of cells) {
    const key = `${cell.rank} ${cell.row}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(cell);
  }
  const byRank = [...groups.values()].sort((a, b) => a[0].rank - b[0].rank);
  for (const group of byRank) {
    const wish = (cell) => {
      const before = cell.before.filter((one) => one.track != null);
      if (!before.length) return 0;
      return before.reduce((sum, one) => sum + one.row * 100 + one.centre, 0) / before.length;
    };
    group.sort((a, b) => wish(a) - wish(b) || (a.node ?? a.edge) - (b.node ?? b.edge));
    group.forEach((cell, track) => {
      cell.track = track;
      cell.siblings = group.length;
      cell.centre = track - (group.length - 1) / 2;
    });
  }
}

// The rows with their tracks and extents.
function rowsOf(cells, lanes, { size, gap, vertical }) {
  const count = Math.max(...lanes.map((lane) => lane.row)) + 1;
  let begin = 0;
  return Array.from({ length: count }, (_, number) => {
    const tracks = Math.max(1, ...cells.filter((cell) => cell.row === number).map((cell) => cell.siblings));
    const title = vertical ? 0 : LANE.title;
    const row = { begin, tracks, extent: title + 2 * LANE.pad + tracks * size.across + (tracks - 1) * gap.across };
    begin += row.extent;
    return row;
  });
}

function placeCells(cells, rows, { size, gap, vertical }) {
  const places = new Map();
  for (const cell of cells) {
    const row = rows[cell.row];
    const spare = ((row.tracks - cell.siblings) * (size.across + gap.across)) / 2;
    const title = LANE.title;
    const across = row.begin + (vertical ? 0 : title) + LANE.pad + spare + cell.track * (size.across + gap.across);
    const along = LANE.pad + cell.rank * (size.along + gap.along) + (vertical ? title : 0);
    const box = vertical
      ? { x: across, y: along, width: size.across, height: size.along }
      : { x: along, y: across, width: size.along, height: size.across };
    if (cell.node != null) places.set(cell.node, box);
    else {
      const key = `edge ${cell.edge}`;
      if (!places.has(key)) places.set(key, []);
      places.get(key).push(box);
    }
  }
  return places;
}

// A lane reaches from its first rank to its last; lanes of one row meet in the middle of the gap.
function laneBox(lane, row, last, { size, gap, vertical }) {
  const at = (rank) => LANE.pad + rank * (size.along + gap.along);
  const begin = lane.first === 0 ? 0 : at(lane.first) - gap.along / 2;
  const end = lane.last === last ? at(last) + size.along + LANE.pad : at(lane.last) + size.along + gap.along / 2;
  const down = vertical && lane.first > 0 ? LANE.title : 0;
  return vertical
    ? { x: row.begin, y: begin + down, width: row.extent, height: end - begin + LANE.title - down }
    : { x: begin, y: row.begin, width: end - begin, height: row.extent };
}

const middle = (box) => ({ x: box.x + box.width / 2, y: box.y + box.height / 2 });

function routeOf(edge, places, { vertical }) {
  const [from, to] = [places.get(edge.from), places.get(edge.to)];
  if (!from || !to) return null;
  if (edge.back) return backRoute(edge, from, to, vertical);
  const passages = places.get(`edge ${edge.index}`) ?? [];
  const start = vertical
    ? { x: middle(from).x, y: from.y + from.height }
    : { x: from.x + from.width, y: middle(from).y };
  const end = vertical ? { x: middle(to).x, y: to.y } : { x: to.x, y: middle(to).y };
  const points = [start];
  for (const box of passages) {
    points.push(vertical ? { x: middle(box).x, y: box.y } : { x: box.x, y: middle(box).y });
    points.push(vertical
      ? { x: middle(box).x, y: box.y + box.height }
      : { x: box.x + box.width, y: middle(box).y });
  }
  points.push(end);
  let path = `M${start.x} ${start.y}`;
  for (let at = 1; at < points.length; at += 1) path += curve(points[at - 1], points[at], vertical);
  const label = pointOn(points[points.length - 2], end, vertical, nearEnd(points[points.length - 2], end, vertical));
  // The edges of a node begin at one point: their classes are where they have parted.
  const classes = pointOn(start, points[1], vertical, CLASSES_AT);
  const turn = Math.sign(vertical ? points[1].x - start.x : points[1].y - start.y);
  return { ...edge, path, label, start, classesAt: { ...classes, turn } };
}

// Parameter of a curve at which its classes are shown.
const CLASSES_AT = 0.3;
// Distance in pixels between the label of an edge and its end, for a ring beside the node.
const LABEL_FROM_END = { along: 30, down: 24 };

// The parameter of a curve at which its label is shown: near its end, where edges from one node are
// apart, but not on the node.
function nearEnd(a, b, vertical) {
  const length = vertical ? b.y - a.y : b.x - a.x;
  const least = vertical ? LABEL_FROM_END.down : LABEL_FROM_END.along;
  let at = 0.75;
  while (at > 0.5 && (1 - alongCurve(at)) * length < least) at -= 0.01;
  return at;
}

const alongCurve = (at) => 1.5 * at * (1 - at) + at ** 3;
const acrossCurve = (at) => 3 * at ** 2 - 2 * at ** 3;

// The point of a curve between two points, rounded to tenths of a pixel.
function pointOn(a, b, vertical, at) {
  const [x, y] = vertical ? [acrossCurve(at), alongCurve(at)] : [alongCurve(at), acrossCurve(at)];
  const between = (from, to, share) => Math.round((from + (to - from) * share) * 10) / 10;
  return { x: between(a.x, b.x, x), y: between(a.y, b.y, y) };
}

function curve(a, b, vertical) {
  if (vertical) {
    const half = (a.y + b.y) / 2;
    return `C${a.x} ${half} ${b.x} ${half} ${b.x} ${b.y}`;
  }
  const half = (a.x + b.x) / 2;
  return `C${half} ${a.y} ${half} ${b.y} ${b.x} ${b.y}`;
}

// A back edge leaves and enters at the side of the nodes, in a bow.
function backRoute(edge, from, to, vertical) {
  if (vertical) {
    const x = Math.max(from.x + from.width, to.x + to.width);
    const [a, b] = [middle(from).y, middle(to).y];
    const path = `M${from.x + from.width} ${a}C${x + 18} ${a} ${x + 18} ${b} ${to.x + to.width} ${b}`;
    return { ...edge, path, label: { x: x + 12, y: (a + b) / 2 }, start: { x, y: a }, classesAt: { x: x + 3, y: a, turn: 1 } };
  }
  const y = Math.max(from.y + from.height, to.y + to.height);
  const [a, b] = [middle(from).x, middle(to).x];
  const path = `M${a} ${from.y + from.height}C${a} ${y + 20} ${b} ${y + 20} ${b} ${to.y + to.height}`;
  return { ...edge, path, label: { x: (a + b) / 2, y: y + 14 }, start: { x: a, y }, classesAt: { x: a, y: y + 14, turn: 1 } };
}

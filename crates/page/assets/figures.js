// Rates and losses of nodes and edges, computed from two samples of a path's counters.

const zero = { blocks: 0, bytes: 0 };

function lostIn(drops, byRequest) {
  return drops.reduce((sum, drop) => sum + (byRequest.has(drop.why) ? 0 : drop.blocks ?? 0), 0);
}

// Totals of a node over its replicas. The ends of rings are not nodes.
function nodeTotals(counters, byRequest) {
  const totals = new Map();
  for (const filter of counters.filters) {
    if (isRing(filter.name)) continue;
    const sum = totals.get(filter.node) ?? {
      blocks: 0, bytes: 0, made: 0, passed: 0, unselected: 0, consumed: 0, held: 0, calls: 0,
      busy: 0, lost: 0, drops: new Map(), ring: null,
    };
    const came = filter.taken.blocks > 0 ? filter.taken : filter.made;
    sum.blocks += came.blocks;
    sum.bytes += came.bytes;
    sum.made += filter.made.blocks;
    sum.passed += filter.passed.blocks;
    sum.unselected += filter.unselected.blocks;
    sum.consumed += filter.consumed.blocks;
    sum.held += filter.held.blocks;
    sum.calls += filter.calls;
    sum.busy += filter.busy_ns;
    // An operand processes copies: the section counts what is lost.
    sum.lost += filter.operand ? 0 : lostIn(filter.lost, byRequest);
    sum.ring = filter.ring ?? sum.ring;
    addDrops(sum.drops, filter.lost);
    totals.set(filter.node, sum);
  }
  return totals;
}

// The name of a filter contains no space.
const isRing = (name) => name.startsWith("ring ");

// An edge through rings has counters for each of its segments. A ring to or from another space is
// between two of them; replicas and their join are at an end of the edge.
const isWithinEdge = (name) => name.startsWith("ring to ") || name.startsWith("ring from ");

// Totals of an edge over its segments and over replicas: what enters the first segment, what leaves
// the last one, and what is lost or waits on any of them.
function edgeTotals(counters, byRequest) {
  const totals = new Map();
  for (const edge of counters.edges) {
    const sum = totals.get(edge.edge) ?? {
      put: { ...zero }, taken: { ...zero }, resident: 0, room: 0, lost: 0, drops: new Map(), size: null,
    };
    if (!isWithinEdge(edge.from)) add(sum.put, edge.put);
    if (!isWithinEdge(edge.to)) add(sum.taken, edge.taken);
    sum.resident += edge.resident.blocks;
    sum.room += edge.size?.entries ?? 0;
    sum.size = edge.size ?? sum.size;
    sum.lost += lostIn(edge.lost, byRequest);
    addDrops(sum.drops, edge.lost);
    totals.set(edge.edge, sum);
  }
  return totals;
}

function add(sum, more) {
  sum.blocks += more.blocks;
  sum.bytes += more.bytes;
}

function addDrops(drops, more) {
  for (const { why, blocks } of more) {
    const known = drops.get(why);
    drops.set(why, blocks == null ? known ?? null : (known ?? 0) + blocks);
  }
}

// The figures of a path. `before` are earlier counters of the same plan, or null.
export function figuresOf(counters, byRequest, before, plan) {
  const reasons = new Set(byRequest);
  const seconds = before ? (counters.elapsed_ns - before.elapsed_ns) / 1e9 : 0;
  const per = (now, then) => (seconds > 0 ? Math.max(0, now - then) / seconds : 0);
  const nodes = nodeTotals(counters, reasons);
  const links = plan.path.links;
  const oldNodes = before ? nodeTotals(before, reasons) : new Map();
  for (const [index, now] of nodes) {
    const then = oldNodes.get(index) ?? now;
    now.rate = per(now.blocks, then.blocks);
    now.byteRate = per(now.bytes, then.bytes);
    now.lostRate = per(now.lost, then.lost);
    const blocks = now.blocks - then.blocks;
    const busy = now.busy - then.busy;
    now.blockNs = blocks > 0 && busy > 0 ? busy / blocks : null;
  }
  const edges = edgeTotals(counters, reasons);
  const oldEdges = before ? edgeTotals(before, reasons) : new Map();
  for (const [index, now] of edges) {
    const then = oldEdges.get(index) ?? now;
    now.rate = per(now.put.blocks, then.put.blocks);
    now.byteRate = per(now.put.bytes, then.put.bytes);
    now.lostRate = per(now.lost, then.lost);
    now.room = now.room || links[index]?.room || 0;
  }
  const sources = counters.sources.map((source) => ({
    ...source,
    losses: source.lost.filter((drop) => !reasons.has(drop.why)),
  }));
  return { counters, nodes, edges, sources, reasons };
}

// Checks the figures of edges. Argument: the file that computes them.

import { readFileSync } from "node:fs";
import assert from "node:assert/strict";

const source = readFileSync(process.argv[2]);
const { figuresOf } = await import(`data:text/javascript;base64,${source.toString("base64")}`);

const amount = (blocks) => ({ blocks, bytes: blocks * 10 });
const segment = (edge, from, to, put, taken) => ({
  edge, from, to, put: amount(put), taken: amount(taken), resident: amount(0), lost: [{ why: "ring", blocks: put - taken }], size: null,
});

// Counters after a number of seconds.
function counters(seconds) {
  const edges = [
    segment(2, "sample", "ring to thread1", 14 * seconds, 14 * seconds),
    segment(2, "ring to thread1", "ring from thread0", 14 * seconds, 13 * seconds),
    segment(2, "ring from thread0", "pcap", 13 * seconds, 13 * seconds),
    segment(0, "match", "match", 5 * seconds, 5 * seconds),
    segment(0, "match", "match", 6 * seconds, 6 * seconds),
    segment(1, "ring join of match", "count", 4 * seconds, 4 * seconds),
    segment(3, "generate", "ring share of match", 9 * seconds, 9 * seconds),
  ];
  return { elapsed_ns: seconds * 1e9, edges, filters: [], sources: [] };
}

const { edges } = figuresOf(counters(3), [], counters(1), { path: { links: [] } });
const seen = (index) => {
  const { rate, byteRate, lostRate, put, taken, lost } = edges.get(index);
  return [rate, byteRate, lostRate, put.blocks, taken.blocks, lost];
};
assert.deepEqual(seen(2), [14, 140, 1, 42, 39, 3], "an edge through a ring");
assert.deepEqual(seen(0), [11, 110, 0, 33, 33, 0], "an edge between replicas");
assert.deepEqual(seen(1), [4, 40, 0, 12, 12, 0], "an edge behind replicas");
assert.deepEqual(seen(3), [9, 90, 0, 27, 27, 0], "an edge to replicas");

// A plot of rates over time: the kept history, then the samples as they come.

import { get } from "./api.js";
import { rate, short } from "./format.js";

const clock = (s, seconds) => new Date(s * 1000).toTimeString().slice(0, seconds ? 8 : 5);

const POINTS_MAX = 2000;
const HEIGHT = 150;

export class Plot {
  constructor(root, number, edge) {
    this.root = root;
    this.rows = [[], [], []];
    this.ended = new AbortController();
    const query = edge == null ? "" : `&edge=${edge}`;
    this.draw();
    get(`/api/history?path=${number}${query}`, this.ended.signal).then((columns) => {
      const kept = [columns.time_ms.map((ms) => ms / 1000), columns.blocks, columns.lost];
      const last = kept[0].at(-1) ?? 0;
      const fresh = this.rows[0].map((_, at) => at).filter((at) => this.rows[0][at] > last);
      this.rows = kept.map((row, n) => [...row, ...fresh.map((at) => this.rows[n][at])]);
      this.plot?.setData(this.rows);
    }).catch(() => {});
    this.resizes = new ResizeObserver(() => this.plot?.setSize({ width: this.root.clientWidth, height: HEIGHT }));
    this.resizes.observe(root);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.draw();
    this.dark.addEventListener("change", this.redraw);
  }

  draw() {
    this.plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    this.plot = new uPlot({
      width: this.root.clientWidth || 300, height: HEIGHT,
      cursor: { y: false, points: { size: 6 } },
      legend: { live: true },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high ?? 1) * 1.08] } },
      axes: [
        { ...axis, space: 64, size: 26, values: (_, all, __, ___, step) => all.map((s) => clock(s, step < 60)) },
        { ...axis, size: 48, space: 34, values: (_, all) => all.map((n) => short(n)) },
      ],
      series: [
        { label: "time", value: (_, s) => (s == null ? "–" : clock(s, true)) },
        { label: "blocks", stroke: colour("--accent"), fill: colour("--accent-soft"), width: 1.5, points: { show: false }, value: (_, n) => (n == null ? "–" : rate(n)) },
        { label: "lost", stroke: colour("--bad"), width: 1.5, points: { show: false }, value: (_, n) => (n == null ? "–" : rate(n)) },
      ],
    }, this.rows, this.root);
  }

  // Adds a sample.
  push(ms, blocks, _bytes, lost) {
    const at = ms / 1000;
    if (at <= (this.rows[0].at(-1) ?? 0)) return;
    [at, blocks, lost].forEach((value, row) => this.rows[row].push(value));
    if (this.rows[0].length > POINTS_MAX) for (const row of this.rows) row.shift();
    this.plot?.setData(this.rows);
  }

  destroy() {
    this.ended.abort();
    this.resizes.disconnect();
    this.dark.removeEventListener("change", this.redraw);
    this.plot?.destroy();
    this.plot = null;
  }
}

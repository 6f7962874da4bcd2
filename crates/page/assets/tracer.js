// The dialog that traces a flow through the selected path.

import { post } from "./api.js";
import { bytes, count, make, setText, time, visible } from "./format.js";

const by = (id) => document.getElementById(id);

export class Tracer {
  constructor(numberOf) {
    const dialog = by("tracer");
    by("trace").addEventListener("click", () => {
      dialog.showModal();
      by("flow").focus();
    });
    by("tracer-close").addEventListener("click", () => dialog.close());
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.trace(numberOf()).catch((error) => this.say(error.message, true));
    });
  }

  async trace(path) {
    const [flow, seconds] = [by("flow").value, Number(by("seconds").value)];
    by("fates").replaceChildren();
    by("tracer-run").disabled = true;
    this.say(`collecting frames for ${seconds} s`);
    try {
      const found = await post("/api/why", { path, flow, seconds });
      by("fates").replaceChildren(fateTable(found.nodes));
      this.say(`${count(found.collected)} frames collected, ${found.skipped ? count(found.skipped) : "none"} skipped`);
    } finally {
      by("tracer-run").disabled = false;
    }
  }

  say(text, wrong = false) {
    setText(by("tracer-said"), text);
    by("tracer-said").classList.toggle("bad", wrong);
  }
}

// A row for each filter that received frames of the flow, in the order of the request.
function fateTable(nodes) {
  const names = ["filter", "runs in", "received", "bytes", "class", "other"];
  const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
  // The source of the trace receives nothing: it replays what was collected.
  const rows = nodes.filter((node) => node.blocks > 0 || node.made > 0).map((node) => {
    const cells = [node.filter, node.space, count(node.blocks), bytes(node.bytes), numbers(node.answered) || "–", others(node)];
    return make("tr", {}, ...cells.map((text) => make("td", {}, visible(text))));
  });
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

function numbers(counts) {
  return Object.entries(counts ?? {}).map(([what, number]) => `${what}: ${count(number)}`).join(", ");
}

function others(node) {
  const parts = [];
  if (node.held > 0) parts.push(`held ${count(node.held)} (longest ${time(node.held_max_ns)}), released ${count(node.released)}`);
  for (const [why, number] of Object.entries(node.dropped ?? {})) parts.push(`dropped ${count(number)} (${why})`);
  for (const [why, number] of Object.entries(node.unanswered ?? {})) parts.push(`not answered ${count(number)} (${why})`);
  if (node.consumed) parts.push(`used up ${count(node.consumed)}`);
  if (node.made) parts.push(`made ${count(node.made)}`);
  if (node.unselected) parts.push(`selected by no arc ${count(node.unselected)}`);
  return parts.join(", ");
}

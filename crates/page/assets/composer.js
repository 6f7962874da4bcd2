// A request that is typed: completions and mistakes while one types, its plan before it starts.

import { post } from "./api.js";
import { make, setText, time, visible } from "./format.js";

const PAUSE_MS = 180;
const by = (id) => document.getElementById(id);

export class Composer {
  constructor(choose) {
    this.dialog = by("composer");
    this.line = by("line");
    this.checked = null;
    by("new").addEventListener("click", () => {
      this.dialog.showModal();
      this.line.focus();
    });
    by("cancel").addEventListener("click", () => this.dialog.close());
    this.line.addEventListener("input", () => this.typed());
    this.dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      const started = event.submitter?.id === "start";
      (started ? this.start(choose) : this.explain()).catch((error) => this.fail(error));
    });
    by("start").disabled = true;
  }

  typed() {
    clearTimeout(this.pause);
    by("start").disabled = true;
    by("plan").replaceChildren();
    this.pause = setTimeout(() => this.check().catch((error) => this.fail(error)), PAUSE_MS);
  }

  async check() {
    const line = this.line.value;
    if (!line.trim()) return this.say("");
    const [{ mistakes }, completions] = await Promise.all([post("/api/check", { line }), post("/api/complete", { line })]);
    if (line !== this.line.value) return undefined;
    by("completions").replaceChildren(...completions.slice(0, 40).map((value) => make("option", { value })));
    const first = mistakes[0];
    this.line.setAttribute("aria-invalid", String(mistakes.some((mistake) => mistake.error)));
    if (!first) return this.say("no mistakes");
    const where = line.slice(first.start, first.end);
    const rest = mistakes.length > 1 ? ` (and ${mistakes.length - 1} more)` : "";
    return this.say(`${where ? `“${where}”: ` : ""}${first.what}${first.hint ? ` — ${first.hint}` : ""}${rest}`, first.error);
  }

  async explain() {
    const line = this.line.value;
    this.say("planning");
    const plan = await post("/api/explain", { line });
    if (line !== this.line.value) return;
    by("plan").replaceChildren(planTable(plan));
    by("start").disabled = false;
    this.say("planned; nothing runs yet");
  }

  async start(choose) {
    this.say("starting");
    const { number } = await post("/api/start", { line: this.line.value, name: by("name").value });
    this.say("");
    this.dialog.close();
    choose(number);
  }

  fail(error) {
    this.say(error.message, true);
  }

  say(text, wrong = false) {
    setText(by("said"), text);
    by("said").classList.toggle("bad", wrong);
  }
}

// The filters of a plan with the space and the cost of each.
function planTable(plan) {
  const head = make("tr", {}, ...["filter", "runs in", "per block", "because"].map((name) => make("th", { scope: "col" }, name)));
  const rows = plan.filters.map((filter) => {
    const space = plan.spaces[filter.space]?.name ?? "";
    const own = filter.candidates.find((known) => known.space === space && known.cost_ns != null);
    const cells = [filter.text, space, own ? time(own.cost_ns) : "–", filter.because];
    return make("tr", {}, ...cells.map((text) => make("td", {}, visible(text))));
  });
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

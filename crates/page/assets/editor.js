// The form that edits the selected path: completions and mistakes while one types, and the stop button.

import { post } from "./api.js";
import { make, setText } from "./format.js";

const PAUSE_MS = 180;
const COMPLETIONS_MAX = 40;
const EDITS = ["insert '", "remove ", "replace ", "move ", "upgrade ", "arg ", "pin ", "add '"];
// Words that a node follows.
const BEFORE_NODE = ["remove", "upgrade", "replace", "move", "arg", "before", "after", "at", "below"];
// A pipe symbol follows a source, so that filters are completed and not sources.
const ANY_SOURCE = "generate | ";
const by = (id) => document.getElementById(id);

export class Editor {
  // `stateOf` returns the number and the plan of the selected path.
  constructor(stateOf) {
    this.stateOf = stateOf;
    this.line = by("edit-line");
    this.line.addEventListener("input", () => this.typed());
    by("edit").addEventListener("submit", (event) => {
      event.preventDefault();
      this.apply().catch((error) => this.say(error.message, true));
    });
    by("stop").addEventListener("click", () => this.stop().catch((error) => this.say(error.message, true)));
  }

  // Checks the edit again, after the request of the path has changed.
  planChanged(number) {
    if (number !== this.checkedPath) this.running = null;
    if (this.line.value.trim()) this.checkSoon();
  }

  typed() {
    this.running = null;
    this.checkSoon();
  }

  checkSoon() {
    clearTimeout(this.pause);
    this.pause = setTimeout(() => this.check().catch((error) => this.find(error.message, true)), PAUSE_MS);
  }

  async check() {
    const edit = this.line.value;
    const { number, plan } = this.stateOf();
    if (!edit.trim() || !plan) {
      this.find("");
      return;
    }
    const completions = await completionsOf(edit, plan);
    if (edit !== this.line.value) return;
    by("edit-completions").replaceChildren(...completions.slice(0, COMPLETIONS_MAX).map((value) => make("option", { value })));
    const found = await post("/api/check-edit", { path: number, edit });
    if (edit !== this.line.value || number !== this.stateOf().number) return;
    [this.running, this.checkedPath] = [found.running, number];
    const mistake = found.mistakes.find((one) => one.error);
    if (mistake) this.find(`${mistake.what}${mistake.hint ? ` — ${mistake.hint}` : ""}`, true);
    else this.find(found.line == null ? "no mistakes; the path checks the rest" : `no mistakes; it would run: ${found.line}`);
  }

  async apply() {
    clearTimeout(this.pause);
    const edit = this.line.value.trim();
    if (!edit) return;
    this.say("changing");
    // The path refuses the edit if it runs another request than the one shown here.
    const { number, latest } = this.stateOf();
    const running = this.running ?? latest.paths.find((path) => path.number === number)?.line;
    const { said } = await post("/api/set", { path: number, edit, running });
    this.line.value = "";
    this.say(said);
  }

  async stop() {
    if (!confirm("Stop this path? Its sources end, and blocks already read are still processed.")) return;
    await post("/api/stop", { path: this.stateOf().number });
  }

  // Shows what the check has found.
  find(text, wrong = false) {
    this.say(text, wrong);
    this.line.setAttribute("aria-invalid", String(wrong));
  }

  say(text, wrong = false) {
    this.line.removeAttribute("aria-invalid");
    setText(by("edit-said"), text);
    by("edit-said").classList.toggle("bad", wrong);
  }
}

// The completions of an incomplete edit, each as the whole edit.
async function completionsOf(edit, plan) {
  const quote = edit.lastIndexOf("'");
  if (edit.split("'").length % 2 === 0) {
    const [before, filter] = [edit.slice(0, quote + 1), edit.slice(quote + 1)];
    const lines = await post("/api/complete", { line: ANY_SOURCE + filter });
    return lines.map((line) => before + line.slice(ANY_SOURCE.length));
  }
  const words = edit.replace(/'[^']*'/g, "'filter'").split(/\s+/);
  const typed = words.pop();
  const before = edit.slice(0, edit.length - typed.length);
  return wordsAfter(words, plan).filter((word) => word.startsWith(typed)).map((word) => before + word);
}

function wordsAfter(words, plan) {
  const nodes = plan.path.nodes.map((node) => node.name);
  const spaces = [...new Set(plan.path.nodes.map((node) => node.space))];
  const [edit, first] = words;
  const last = words.at(-1);
  if (words.length === 0) return EDITS;
  if (BEFORE_NODE.includes(last)) return nodes;
  if (last === "pin") return spaces;
  if (last === "'filter'") return edit === "insert" ? ["before ", "after ", "at "] : edit === "add" ? ["below "] : [];
  if (words.length !== 2) return [];
  if (edit === "replace") return ["with '"];
  if (edit === "move") return ["kernel", "process", "sandbox", "below ", ...spaces];
  if (edit === "pin") return ["any"];
  if (edit !== "arg") return [];
  const known = plan.nodes[nodes.indexOf(first)]?.arguments ?? [];
  return known.filter((argument) => argument.writable).map((argument) => `${argument.name}=`);
}

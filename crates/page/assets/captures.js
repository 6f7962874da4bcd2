// Captures of a path: the frames that leave a filter, written to a file until somebody stops it.

import { get, post } from "./api.js";
import { bytes, count, make, setText, visible } from "./format.js";

const POLL_MS = 1000;

export class Captures {
  // `node` is null for the source of the path.
  constructor(number, name, node) {
    Object.assign(this, { number, node, running: null, timer: null, gone: false });
    this.about = make("p", { class: "muted" }, node == null
      ? "Writes the frames that leave the source into a file, for at most an hour or 1 GB."
      : "Writes the frames that leave this filter into a file, for at most an hour or 1 GB.");
    const file = [name ?? `path${number}`, node].filter((part) => part != null).join("-").replace(/[^A-Za-z0-9.#_-]/g, "_");
    this.file = make("input", { type: "text", spellcheck: "false", "aria-label": "File", value: `${file}.pcap` });
    this.button = make("button", { type: "submit", class: "action" }, "Capture");
    this.said = make("p", { role: "status" });
    this.list = make("ul", { class: "plain captures" });
    const form = make("form", { class: "capture", autocomplete: "off" }, this.file, this.button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.toggle().catch((error) => this.say(error.message, true));
    });
    this.parts = [this.about, form, this.said, this.list];
    this.show();
  }

  async toggle() {
    this.button.disabled = true;
    try {
      if (this.running == null) {
        await post("/api/capture", { path: this.number, node: this.node, file: this.file.value });
      } else {
        await post("/api/capture-stop", { number: this.running });
      }
      this.say("");
    } finally {
      this.button.disabled = false;
    }
    await this.show();
  }

  // Shows the captures of this filter, again each second while one runs.
  async show() {
    clearTimeout(this.timer);
    let captures;
    try {
      ({ captures } = await get("/api/captures"));
    } catch {
      return;
    }
    if (this.gone) return;
    const own = captures.filter((capture) => capture.path === this.number && (capture.node ?? null) === this.node);
    const running = own.find((capture) => capture.ended == null);
    this.running = running?.number ?? null;
    this.file.disabled = running != null;
    setText(this.button, running ? "End capture" : "Capture");
    this.list.replaceChildren(...own.reverse().map((capture) => make("li", {},
      make("strong", {}, visible(capture.file)),
      visible(`${bytes(capture.bytes)} · ${capture.ended ?? `running, ${count(capture.frames)} frames`}`))));
    if (running) this.timer = setTimeout(() => this.show(), POLL_MS);
  }

  say(text, wrong = false) {
    setText(this.said, text);
    this.said.classList.toggle("bad", wrong);
  }

  release() {
    this.gone = true;
    clearTimeout(this.timer);
  }
}

// Uses the page in Chromium as a person does, at the width of a phone and of a desk, in light and
// dark. Arguments: the folder with the node modules, Chromium, the URL, the folder for screenshots.

import { createRequire } from "node:module";
import { readFileSync, rmSync } from "node:fs";
import assert from "node:assert/strict";

const [modules, program, url, shots] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const LIMIT = 20_000;

const browser = await chromium.launch({ executablePath: program, args: ["--no-sandbox"] });
try {
  for (const [name, width, height] of [["phone", 390, 844], ["desk", 1400, 900]]) {
    for (const colorScheme of ["light", "dark"]) await visit(`${name}-${colorScheme}`, { width, height }, colorScheme);
  }
} finally {
  await browser.close();
}

async function visit(name, viewport, colorScheme) {
  const context = await browser.newContext({ viewport, colorScheme, reducedMotion: "reduce" });
  const page = await context.newPage();
  page.setDefaultTimeout(LIMIT);
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  // Refused requests are replies that the page shows.
  const isRefused = (text) => text.includes("the server responded with a status of 400");
  page.on("console", (message) => message.type() === "error" && !isRefused(message.text()) && errors.push(message.text()));
  page.on("dialog", (dialog) => dialog.accept());
  const shoot = (what) => page.screenshot({ path: `${shots}/${name}-${what}.png` });
  const look = async (what) => {
    await shoot(what);
    await page.evaluate(axe);
    const found = await page.evaluate(() => globalThis.axe.run());
    const texts = found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`);
    assert.deepEqual(texts, [], `${name} ${what}`);
  };
  await page.goto(url);
  const row = (path) => page.locator("#paths .row", { has: page.locator(".row-name", { hasText: path }) });
  await row("shown").waitFor();
  assert.ok(!page.url().includes("token"), "the token leaves the address");
  await look("list");
  await row("shown").click();
  await seeGraph(page, look);
  await seeNode(page, look);
  await seeEdge(page, look);
  await traceFlow(page, look);
  await capture(page, look, `${shots}/${name}.pcap`);
  if (colorScheme === "dark") await startAndEdit(page, look, name);
  assert.deepEqual(errors, [], name);
  await context.close();
}

async function seeGraph(page, look) {
  await page.waitForFunction(() => [...document.querySelectorAll(".node-rate")].some((one) => /^[1-9]/.test(one.textContent)));
  assert.match(await page.locator("#request").innerText(), /<img src=x onerror=1>/, "a request is text");
  assert.equal(await page.locator("#path img").count(), 0);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wide <= 0, `the page is ${wide} px wider than the window`);
  await look("graph");
}

// By keyboard: a node by arrow keys and Enter, its messages, and back by Escape.
async function seeNode(page, look) {
  const focus = page.locator('#graph [tabindex="0"]');
  await focus.focus();
  const along = (await page.evaluate(() => innerWidth < 760)) ? "ArrowDown" : "ArrowRight";
  await page.keyboard.press(along);
  await page.keyboard.press(along);
  const label = await page.evaluate(() => document.activeElement.getAttribute("aria-label"));
  assert.match(label, /^dport /, "two steps lead over the edge to the next filter");
  await page.keyboard.press("Enter");
  await page.locator(".details h2", { hasText: "dport" }).waitFor();
  await page.locator(".details dt", { hasText: "cost in" }).first().waitFor();
  await page.getByRole("button", { name: "Show", exact: true }).click();
  await page.locator(".messages li").first().waitFor();
  await look("node");
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await page.keyboard.press("Escape");
  await page.locator(".details h2", { hasText: /^Path$/ }).waitFor();
}

async function seeEdge(page, look) {
  await page.locator(".edge").first().focus();
  await page.keyboard.press("Enter");
  await page.locator(".details h2", { hasText: "→" }).waitFor();
  await page.locator(".details .plot canvas").waitFor();
  await page.locator(".details dt", { hasText: "put in" }).waitFor();
  await look("edge");
  await page.keyboard.press("Escape");
}

// By keyboard: the fate of a flow in each filter.
async function traceFlow(page, look) {
  await page.getByRole("button", { name: "Trace a flow" }).focus();
  await page.keyboard.press("Enter");
  const said = page.locator("#tracer-said");
  await page.locator("#seconds").fill("1");
  await page.locator("#flow").fill("<b>no flow</b>");
  await page.keyboard.press("Enter");
  await said.filter({ hasText: "<b>no flow</b>" }).waitFor();
  await page.locator("#flow").fill("udp dst port 9");
  await page.keyboard.press("Enter");
  await page.locator("#fates td", { hasText: "dport" }).first().waitFor();
  assert.match(await said.innerText(), /^[1-9].* frames collected, none skipped$/);
  assert.equal(await page.locator("#ended li", { hasText: /^path [0-9]/ }).count(), 0, "a trace is no path");
  await look("trace");
  await page.getByRole("button", { name: "Close", exact: true }).click();
}

// The frames of the source in a file, as many as the page says, and never over another file.
async function capture(page, look, file) {
  rmSync(file, { force: true });
  const field = page.locator(".capture input");
  const start = page.getByRole("button", { name: "Capture", exact: true });
  await field.fill(file);
  await start.click();
  const line = page.locator(".captures li").first();
  await line.filter({ hasText: /running, [1-9]/ }).waitFor();
  await page.getByRole("button", { name: "End capture" }).click();
  await line.filter({ hasText: "none skipped" }).waitFor();
  const told = Number((await line.innerText()).match(/([\d\s]+) frames/)[1].replace(/\s/g, ""));
  assert.equal(framesIn(readFileSync(file)), told);
  await field.fill(file);
  await start.click();
  await page.locator(".details .bad", { hasText: "exists already" }).waitFor();
  await line.scrollIntoViewIfNeeded();
  await look("capture");
}

function framesIn(bytes) {
  let frames = 0;
  for (let at = 24; at < bytes.length; frames += 1) at += 16 + bytes.readUInt32LE(at + 8);
  return frames;
}

// Completions and mistakes of an edit while one types it.
async function typeEdit(page, look) {
  const [line, said] = [page.locator("#edit-line"), page.locator("#edit-said")];
  const offered = (value) => page.locator(`#edit-completions option[value="${value}"]`).waitFor({ state: "attached" });
  await line.fill("ins");
  await offered("insert '");
  await line.fill("insert 'dpor");
  await offered("insert 'dport");
  await line.fill("insert 'dport' aft");
  await offered("insert 'dport' after ");
  await line.fill("remove co");
  await offered("remove count");
  await line.fill("remove cuont");
  await said.filter({ hasText: "cuont" }).waitFor();
  assert.equal(await line.getAttribute("aria-invalid"), "true");
  await line.fill("insert 'dprot' after generate");
  await said.filter({ hasText: "did you mean `dport`" }).waitFor();
  await look("mistake");
  await line.fill("insert 'dport' after generate");
  await said.filter({ hasText: /would run: generate .* dport/ }).waitFor();
}

async function startAndEdit(page, look, name) {
  await page.getByRole("button", { name: "New path" }).click();
  const said = page.locator("#said");
  await page.locator("#line").fill("generate rate=100 | cout");
  await said.filter({ hasText: "did you mean `count`" }).waitFor();
  await page.locator("#line").fill("generate rate=100 | cou");
  await page.locator('#completions option[value="generate rate=100 | count"]').waitFor({ state: "attached" });
  assert.ok(await page.locator("#start").isDisabled(), "a plan is seen before a start");
  await page.locator("#line").fill("generate rate=100 | count");
  await said.filter({ hasText: "no mistakes" }).waitFor();
  await page.locator("#name").fill(name);
  await page.getByRole("button", { name: "Explain" }).click();
  await page.locator("#plan td", { hasText: "count" }).first().waitFor();
  await look("plan");
  await page.locator("#start").click();
  await page.locator("#path-name", { hasText: name }).waitFor();
  await page.locator(".node").nth(2).waitFor();
  await typeEdit(page, look);
  await page.getByRole("button", { name: "Apply" }).click();
  await page.locator("#edit-said", { hasText: "lost" }).waitFor();
  assert.match(await page.locator("#edit-said").innerText(), /lost 0|0 lost|none lost/);
  await page.locator('.node[aria-label^="dport "]').waitFor();
  await look("edited");
  await page.getByRole("button", { name: "Stop path" }).click();
  await page.locator("#choose", { hasText: "has ended" }).waitFor();
}

// Draws the graph of a path as the page does, and prints it as a self-contained SVG: with the rules
// of the page's style sheet that apply to it, for light and dark. The plan is that of the running
// path; the rates are fixed, so that the picture changes only with the plan or the page.
// Arguments: the folder with the node modules, Chromium, the URL, the number of the path.

import { createRequire } from "node:module";

const [modules, program, url, number] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/`)("playwright-core");

// Blocks per second that enter each node, blocks lost there since the start, and blocks in the rings
// that lead to a node.
const RATES = { rx: 48_200, dport: 48_200, pcap: 1310, tcp: 9400, http: 2150, weblog: 430 };
const LOST = { tcp: 12 };
const INSIDE = { http: 96 };

const browser = await chromium.launch({ executablePath: program, args: ["--no-sandbox"] });
try {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, colorScheme: "light", reducedMotion: "reduce" });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  await page.goto(url);
  await page.locator("#paths .row").click();
  await page.locator("#graph .node").first().waitFor();
  const text = await page.evaluate(drawPicture, { number, rates: RATES, lost: LOST, inside: INSIDE });
  process.stdout.write(text);
} finally {
  await browser.close();
}

// Runs in the page.
async function drawPicture({ number, rates, lost, inside }) {
  const [{ Graph }, { get }] = await Promise.all([import("/graph.js"), import("/api.js")]);
  const plan = await get(`/api/plan?path=${number}`);
  // Beside the graph of the page, which changes with each sample.
  const place = document.createElement("div");
  place.className = "graph";
  // Wide enough for the distances of a desktop screen.
  place.style.width = "1120px";
  document.getElementById("graph").after(place);
  const graph = new Graph(place, () => {});
  graph.draw(plan, false);
  const { nodes, links } = plan.path;
  graph.update({
    nodes: new Map(nodes.map(({ name }, index) => [index, { rate: rates[name], lost: lost[name] ?? 0, lostRate: 0 }])),
    edges: new Map(links.map(({ to, room }, index) => [index, {
      rate: rates[nodes[to].name], lost: 0, lostRate: 0, resident: inside[nodes[to].name] ?? 0, room: room ?? 0,
    }])),
  });
  const drawing = place.querySelector("svg");
  const { width, height } = drawing.viewBox.baseVal;
  drawing.querySelectorAll(".hit").forEach((one) => one.remove());
  for (const one of drawing.querySelectorAll("*")) {
    for (const { name } of [...one.attributes]) if (/^(aria-|role$|tabindex$)/.test(name)) one.removeAttribute(name);
  }

  // The rules for what the picture contains, and the colors that they use.
  const [kept, light, dark] = [[], {}, {}];
  const collect = (rules, colors) => {
    for (const rule of rules) {
      if (rule.media?.mediaText.includes("prefers-color-scheme: dark")) collect(rule.cssRules, dark);
      else if (rule.selectorText === ":root") {
        for (const property of rule.style) if (property.startsWith("--")) colors[property] = rule.style.getPropertyValue(property);
      } else if (rule.selectorText && !/[*:]/.test(rule.selectorText) && drawing.querySelector(`:scope :is(${rule.selectorText})`)) {
        kept.push(rule.cssText.replace(/ ?(cursor|pointer-events|transition): [^;]*;/g, ""));
      }
    }
  };
  for (const sheet of document.styleSheets) collect(sheet.cssRules, light);
  kept.push(".paper { fill: var(--surface); stroke: var(--line); }");
  const rules = kept.filter((rule) => !/{ *}$/.test(rule));
  const used = Object.keys(light).filter((color) => rules.some((rule) => rule.includes(`var(${color})`)));
  const block = (colors) => `svg { ${used.filter((color) => color in colors).map((color) => `${color}: ${colors[color]};`).join(" ")} }`;
  const font = getComputedStyle(document.body).fontFamily;
  const style = [`svg { font-family: ${font}; }`, block(light), `@media (prefers-color-scheme: dark) { ${block(dark)} }`, ...rules];

  const PAD = 12;
  const size = [width + 2 * PAD, height + 2 * PAD];
  const inner = [...drawing.children].map((one) => new XMLSerializer().serializeToString(one)).join("\n");
  const lines = inner.replaceAll(' xmlns="http://www.w3.org/2000/svg"', "").replace(/> *</g, ">\n<");
  place.remove();
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${size[0]}" height="${size[1]}" viewBox="${-PAD} ${-PAD} ${size[0]} ${size[1]}" role="img" aria-labelledby="title">
<title id="title">A running path in the live page: filters in lanes by the space that runs them, with their rates</title>
<style>
${style.join("\n")}
</style>
<rect class="paper" x="${0.5 - PAD}" y="${0.5 - PAD}" width="${size[0] - 1}" height="${size[1] - 1}" rx="10"/>
${lines}
</svg>
`;
}

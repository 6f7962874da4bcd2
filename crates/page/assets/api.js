// Requests to the page's server: the token, JSON, and server-sent events.

const STORED = "streamline-token";

// The token arrives in the fragment of the URL. It is kept for this tab and removed from the
// address, so that it does not appear in the history or on the screen.
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(STORED, given);
    history.replaceState(null, "", location.pathname);
  }
}

function headers() {
  const token = sessionStorage.getItem(STORED);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export class Failure extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function checked(reply) {
  if (reply.ok) return reply;
  let text = `the server replied ${reply.status}`;
  try {
    text = (await reply.json()).error ?? text;
  } catch {
    // The status says enough.
  }
  throw new Failure(text, reply.status);
}

export async function get(path, signal) {
  return (await checked(await fetch(path, { headers: headers(), signal }))).json();
}

export async function post(path, value, signal) {
  const body = JSON.stringify(value);
  const sent = { ...headers(), "Content-Type": "application/json" };
  return (await checked(await fetch(path, { method: "POST", headers: sent, body, signal }))).json();
}

// Receives server-sent events until the signal aborts. EventSource cannot send the token.
export async function receive(path, signal, take) {
  const reply = await checked(await fetch(path, { headers: headers(), signal }));
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const lines = event.split("\n");
      const field = (name) =>
        lines.filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2));
      const data = field("data");
      if (data.length) take(field("event")[0] ?? "message", JSON.parse(data.join("\n")));
    }
  }
}

// The dashboard: asks the daemon, and draws. Nothing that the daemon says becomes HTML:
// all of it is set as text.
import { Model, quantile } from "./model.js";
import { Timeline, View, deviceName, length } from "./timeline.js";

const KINDS = "decision,span,request,wait,state,order,note";
const POLL = 200, SLOW = 1000; // ms between questions: for the record, for the rest
const LIMIT = 5000;

const $ = (id) => document.getElementById(id);
const model = new Model(), view = new View();
let token = takeToken();
const problemOf = new Map(); // by what failed

// The token comes with the address, and does not stay in it. The address to look only gives
// up a token that this tab had.
function takeToken() {
  const hash = new URLSearchParams(location.hash.slice(1)), given = hash.get("token");
  if (given) sessionStorage.setItem("token", given);
  else if (hash.has("look")) sessionStorage.removeItem("token");
  if (location.hash) history.replaceState(null, "", location.pathname);
  return sessionStorage.getItem("token") ?? "";
}
addEventListener("hashchange", () => location.hash && location.reload());

async function ask(path, body) {
  const headers = token ? { "Giveway-Token": token } : {};
  const options = body ? { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) } : { headers };
  const answer = await fetch(path, options);
  if (token && answer.headers.get("Giveway-Rights") === "look") {
    token = ""; // the dashboard was started again
    sessionStorage.removeItem("token");
    setProblem("token", "The token is no longer valid; this page can only look. Open the address that 'giveway dashboard' prints now.");
  }
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error ?? answer.statusText);
  return value;
}

// Calls a function again and again. An error is shown until its next success.
async function forever(name, pause, call) {
  for (;;) {
    try {
      await call();
      setProblem(name, "");
    } catch (error) {
      setProblem(name, `${error.message}. Trying again.`);
      await new Promise((done) => setTimeout(done, 1000));
    }
    await new Promise((done) => setTimeout(done, document.hidden ? 2000 : pause));
  }
}

function setProblem(name, text) {
  if ((problemOf.get(name) ?? "") === text) return;
  problemOf.set(name, text);
  const all = [...new Set(problemOf.values())].filter(Boolean).join(" ");
  $("problem").hidden = !all;
  $("problem").textContent = all;
}
$("problem").onclick = () => ["change", "token"].forEach((name) => setProblem(name, ""));

async function readRecord() {
  for (;;) {
    model.keep = view.follow ? Infinity : view.end - view.width;
    const query = model.next ? `after=${model.next}` : "last=true";
    const record = await ask(`/v1/record?${query}&kinds=${KINDS}&limit=${LIMIT}`);
    model.addRecord(record);
    if (!record.more) return;
  }
}

async function readRest() {
  const [status, processes, delays, pressure] = await Promise.all([ask("/v1/status"), ask("/v1/processes"), ask("/v1/delays"), ask("/v1/pressure")]);
  model.setStatus(status);
  model.setProcesses(processes);
  model.delays = delays.delays ?? [];
  model.pressure = new Map((pressure.devices ?? []).map((d) => [d.device, d]));
  drawTables();
}

// ---- Colours

const paint = {};

function readColours() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  for (const name of ["online", "standard", "batch", "idle", "switch", "text", "soft", "card", "line", "bad"]) paint[name] = read(name);
  paint.back = read("back");
  probe.remove();
  paint.cache = new Map();
}

// Processes of a class have shades of its colour.
paint.process = (pid) => {
  const cls = model.classOf(pid), n = model.colours.get(pid)?.n ?? 0;
  const key = `${cls}/${n}`;
  let colour = paint.cache.get(key);
  if (!colour) {
    colour = shade(paint[cls] ?? paint.standard, n);
    paint.cache.set(key, colour);
  }
  return colour;
};
paint.span = (s) => (s.what === "held" ? paint.process(s.pid) : s.what === "switch" ? paint.switch : "");
paint.other = (kind) => (kind === "switch" ? paint.switch : paint.idle);

function shade(rgb, n) {
  const [r, g, b] = rgb.match(/[\d.]+/g).map(Number);
  const step = [0, 0.28, -0.22, 0.5, -0.4, 0.14, -0.1, 0.4][n % 8], to = step > 0 ? 255 : 0, k = Math.abs(step);
  return `rgb(${[r, g, b].map((c) => Math.round(c + (to - c) * k)).join(" ")})`;
}

// ---- Drawing

const timelines = new Map();
const stats = { frames: 0, fps: 0, drawMs: 0, since: performance.now() };
// For tests.
const problems = [];
window.giveway = { model, view, stats, problems };
addEventListener("error", (event) => problems.push(event.message));
addEventListener("unhandledrejection", (event) => problems.push(`${event.reason}`));
addEventListener("securitypolicyviolation", (event) => problems.push(`${event.violatedDirective} ${event.blockedURI}`));

function frame() {
  const begun = performance.now(), now = model.time();
  for (const [id, device] of model.devices) {
    let t = timelines.get(id);
    if (!t || t.device !== device) {
      t?.root.remove();
      t = new Timeline($("timelines"), device, paint);
      listen(t);
      timelines.set(id, t);
    }
    t.draw(model, view, now);
  }
  const about = view.follow ? `${length(view.width)}, live` : `${length(view.width)}, frozen`;
  if ($("window").textContent !== about) $("window").textContent = about;
  stats.frames++;
  stats.drawMs += (performance.now() - begun - stats.drawMs) / 20;
  if (begun - stats.since >= 1000) {
    stats.fps = (stats.frames * 1000) / (begun - stats.since);
    stats.frames = 0;
    stats.since = begun;
  }
  requestAnimationFrame(frame);
}

// make returns an element with text, a class and children.
function make(tag, { text, cls, title } = {}, ...children) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (cls) e.className = cls;
  if (title) e.title = title;
  e.append(...children);
  return e;
}

function chip(pid) {
  const c = make("span", { cls: "chip" });
  c.style.background = paint.process(pid);
  return c;
}

// Parts near all and near nothing have a decimal, which is cut off: not quite all is not all.
function percent(x) {
  if (x === null || Number.isNaN(x)) return "-";
  if (x < 0.0995) return `${(100 * x).toFixed(1)} %`;
  return x > 0.99 && x < 1 ? `${(Math.floor(1000 * x) / 10).toFixed(1)} %` : `${(100 * x).toFixed(0)} %`;
}

function drawTables() {
  const s = model.status;
  const lost = model.lost ? `, ${model.lost} entries of the record missed` : "";
  const about = s ? `${s.version}, policy ${s.policy?.name ?? "?"}${s.policy?.overruled ? " (overruled)" : ""}${token ? "" : ", to look only"}${lost}` : "";
  if ($("daemon").textContent !== about) $("daemon").textContent = about;
  drawDevices();
  drawProcesses();
  drawLatency();
  drawDelays();
  drawLog();
}

function drawDevices() {
  const cards = [];
  for (const d of model.devices.values()) {
    const { held, other, switches, known: span } = model.use(d, 10e3);
    const bar = make("div", { cls: "bar" });
    const add = (part, colour, title) => {
      const i = make("i", { title });
      i.style.width = `${100 * part}%`;
      i.style.background = colour;
      bar.append(i);
    };
    const kept = { online: 0, standard: 0, batch: 0, idle: 0 };
    for (const [pid, took] of [...held].sort((a, b) => b[1] - a[1])) {
      kept[model.classOf(pid)] += took / span;
      add(took / span, paint.process(pid), `${model.name(pid)}: ${percent(took / span)}`);
    }
    add(other.switch / span, paint.switch, `context switches: ${percent(other.switch / span)}`);
    const figures = make("dl", { cls: "figures" });
    const figure = (name, value, title) => figures.append(make("div", { title }, make("dt", { text: name }), make("dd", { text: value })));
    if (d.spans.length) {
      figure("online", percent(kept.online));
      figure("batch", percent(kept.batch), "Part of the device's time, last ten seconds");
      if (kept.standard > 0) figure("standard", percent(kept.standard));
      figure("switching", percent(other.switch / span), "Time in which no process made progress");
      figure("switches", `${(switches / (span / 1e3)).toFixed(0)}/s`);
      figure("batch kept", percent(kept.batch / Math.max(1e-9, 1 - kept.online - kept.standard)), "Part of what online and standard work left");
    } else {
      figure("", "no context-switch trace");
    }
    const p = model.pressure.get(d.id);
    if (p) figure("pressure", `${p.some.avg10.toFixed(1)} %${p.estimated ? " (estimated)" : ""}`, "Part of the last ten seconds in which a process waited for the device");
    cards.push(make("article", { cls: "device" }, make("h2", {}, deviceName(d.about), make("small", { text: d.about.model ?? d.id })), bar, figures));
  }
  $("devices").replaceChildren(...cards);
}

const COLUMNS = ["Process", "Class", "State", "Now", "Minute", "Requests", "P99", "In time", "Weight", "Slice", "User", "Command", ""];
const TEXT = new Set(["Process", "Class", "State", "User", "Command", ""]);
const CLASSES = ["online", "standard", "batch", "idle"];
const MAX_ROWS = 300;
const rows = new Map(); // by pid

// Rows stay while their processes do, so that focus, clicks and open lists last.
function drawProcesses() {
  const table = $("processes");
  if (!table.tHead.rows.length) table.tHead.append(make("tr", {}, ...COLUMNS.map((c) => make("th", { text: c, cls: TEXT.has(c) ? "text" : "" }))));
  const all = [...model.processes.values()].sort((a, b) => CLASSES.indexOf(a.class) - CLASSES.indexOf(b.class) || a.pid - b.pid).slice(0, MAX_ROWS);
  const shown = new Set(all.map((p) => p.pid)), now = model.shares(1e3), minute = model.shares(60e3), body = table.tBodies[0];
  for (const [pid, row] of rows) {
    if (shown.has(pid)) continue;
    row.root.remove();
    rows.delete(pid);
  }
  all.forEach((p, i) => {
    let row = rows.get(p.pid);
    if (!row) rows.set(p.pid, (row = newRow(p.pid)));
    fillRow(row, p, now(p), minute(p));
    if (body.rows[i] !== row.root) body.insertBefore(row.root, body.rows[i] ?? null);
  });
}

function newRow(pid) {
  const root = make("tr"), cells = COLUMNS.map((c) => make("td", { cls: TEXT.has(c) ? "text" : "" }));
  cells[11].classList.add("command");
  const colour = make("span", { cls: "chip" });
  cells[0].append(colour, `${pid}`);
  root.append(...cells);
  const row = { root, cells, colour };
  if (token) addActions(row, pid);
  return row;
}

function fillRow(row, p, now, minute) {
  const q = p.queues?.[0], lat = model.latencies(p.pid, 60e3), n = lat.now.length;
  const slice = !q?.slice_ns ? "-" : q.slice_ns === 1 ? "minimum" : length(q.slice_ns / 1e6);
  const state = p.paused ? "paused" : q?.on_floor ? "floor" : q?.side_by_side ? "side by side" : q?.state ?? (p.member ? "in a pool" : "-");
  const texts = [
    null, p.class, state, percent(now), percent(minute), n ? `${lat.rate.toFixed(1)}/s` : "-", n ? length(quantile(lat.now, 0.99)) : "-",
    lat.slo && n ? percent(1 - lat.late / n) : "-", `${p.weight ?? 1}`, slice, p.user, p.command || "-",
  ];
  texts.forEach((text, i) => {
    if (text !== null && row.cells[i].textContent !== text) row.cells[i].textContent = text;
  });
  row.cells[7].classList.toggle("late", lat.late > 0);
  row.cells[11].title = p.command ?? "";
  row.colour.style.background = paint.process(p.pid);
  row.process = p;
  if (!row.pause) return;
  row.pause.textContent = p.paused ? "Resume" : "Pause";
  if (document.activeElement !== row.cls) row.cls.value = p.class;
}

function addActions(row, pid) {
  row.pause = make("button");
  row.pause.onclick = () => {
    const paused = row.process.paused;
    change(pid, { paused: !paused }, paused ? `Let process ${pid} use its devices again?` : `Pause process ${pid}? It keeps its memory.`);
  };
  row.cls = make("select");
  row.cls.setAttribute("aria-label", `class of ${pid}`);
  row.cls.append(...CLASSES.map((text) => make("option", { text })));
  row.cls.onchange = async () => {
    const wanted = row.cls.value;
    row.cls.blur();
    if (!(await change(pid, { class: wanted }, `Set the class of process ${pid} to ${wanted}?`))) row.cls.value = row.process.class;
  };
  row.cells.at(-1).append(row.pause, " ", row.cls);
}

async function change(pid, body, question) {
  $("question").textContent = question;
  const dialog = $("confirm");
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "yes") return false;
  try {
    await ask(`/v1/processes/${pid}`, body);
    setProblem("change", "");
    await readRest();
    return true;
  } catch (error) {
    setProblem("change", `${error.message}. (Click to close.)`);
    return false;
  }
}

// ---- Latencies, delays, events

function drawLatency() {
  const programs = model.requesting(), most = 6;
  if (!programs.length) {
    const why = token ? "No program reports requests. The shim or hints tell the daemon about them." : "Only the address with the token shows requests.";
    $("latency").replaceChildren(make("p", { cls: "hint", text: why }));
    return;
  }
  const shown = programs.slice(0, most).sort((a, b) => a - b).map(program);
  $("latency").replaceChildren(...shown);
  for (const e of shown) e.draw();
  if (programs.length > most) $("latency").append(make("p", { cls: "hint", text: `and ${programs.length - most} more with fewer requests` }));
}

function program(pid) {
  const lat = model.latencies(pid, 60e3), { now, alone } = lat;
  const figures = make("dl", { cls: "figures" });
  const figure = (name, value, cls) => figures.append(make("div", {}, make("dt", { text: name }), make("dd", { text: value, cls })));
  for (const q of [0.5, 0.9, 0.99]) figure(`P${100 * q}`, length(quantile(now, q)));
  figure("max", length(now.at(-1)));
  figure("alone, estimated: P50", length(quantile(alone, 0.5)));
  figure("P99", length(quantile(alone, 0.99)));
  if (lat.slo) figure(`within ${length(lat.slo)}`, percent(1 - lat.late / now.length), lat.late ? "late" : "");
  const canvas = make("canvas");
  const root = make("div", { cls: "program" }, make("div", {}, chip(pid), model.name(pid)), canvas, figures);
  root.draw = () => histogram(canvas, now, alone, paint.process(pid), lat.slo);
  return root;
}

// Draws how many requests took how long, on a logarithmic axis; the line is the estimate of
// alone.
function histogram(canvas, now, alone, colour, slo) {
  const css = canvas.clientWidth, height = 70, scale = devicePixelRatio || 1, bins = Math.max(20, Math.floor(css / 6));
  canvas.width = css * scale;
  canvas.height = height * scale;
  const g = canvas.getContext("2d");
  g.scale(scale, scale);
  const least = Math.max(Math.min(now[0], alone[0]) * 0.9, 1e-3), most = Math.max(now.at(-1), slo || 0) * 1.1;
  const at = (v) => (Math.log(Math.max(v, least) / least) / Math.log(most / least)) * bins;
  const count = (list) => {
    const b = new Array(bins).fill(0);
    for (const v of list) b[Math.min(bins - 1, Math.max(0, Math.floor(at(v))))]++;
    return b;
  };
  const a = count(now), b = count(alone), top = Math.max(...a, ...b, 1), w = css / bins, y = (n) => (height - 16) * Math.sqrt(n / top);
  g.fillStyle = colour;
  a.forEach((n, i) => g.fillRect(i * w, height - 14 - y(n), w - 1, y(n)));
  g.strokeStyle = paint.text;
  g.beginPath();
  b.forEach((n, i) => g.lineTo((i + 0.5) * w, height - 14 - y(n)));
  g.stroke();
  if (slo) {
    g.fillStyle = paint.bad;
    g.fillRect(at(slo) * w, 0, 1.5, height - 14);
  }
  g.fillStyle = paint.soft;
  g.font = "11px system-ui, sans-serif";
  g.fillText(length(least), 0, height - 2);
  const right = length(most);
  g.fillText(right, css - g.measureText(right).width, height - 2);
}

function drawDelays() {
  const rows = new Map(), columns = new Map();
  const key = (h) => (h.kind === "process" ? `${h.pid ?? 0}` : h.kind);
  for (const d of model.delays) {
    if (!d.last_10s_ns) continue;
    if (!rows.has(d.pid)) rows.set(d.pid, new Map());
    const row = rows.get(d.pid), k = key(d.holder);
    row.set(k, (row.get(k) ?? 0) + d.last_10s_ns / 1e6);
    row.estimated ||= d.estimated;
    columns.set(k, d.holder);
  }
  if (!rows.size) {
    $("delays").replaceChildren(make("caption", { cls: "hint", text: "Nobody waited." }));
    return;
  }
  const order = [...columns].sort((a, b) => (a[1].kind === "process" ? 0 : 1) - (b[1].kind === "process" ? 0 : 1)).slice(0, 8);
  const head = make("tr", {}, make("th", { cls: "text", text: "waits" }), ...order.map(([, h]) => make("th", { text: h.kind === "process" ? `for ${h.pid || "hidden"}` : h.kind })));
  const body = [...rows].slice(0, 12).map(([pid, row]) => {
    const cells = order.map(([k]) => {
      const v = row.get(k) ?? 0, td = make("td", { text: v ? length(v) : "" });
      if (v) td.style.background = `color-mix(in srgb, ${paint.bad} ${Math.min(70, 4 + (v / 10e3) * 400).toFixed(0)}%, transparent)`;
      return td;
    });
    return make("tr", {}, make("th", { cls: "text" }, chip(pid), `${model.name(pid)}${row.estimated ? " (estimated)" : ""}`), ...cells);
  });
  $("delays").replaceChildren(head, ...body);
}

// An entry of the record as a sentence.
function sentence(e) {
  const who = e.pid ? model.name(e.pid) : "";
  switch (e.kind) {
    case "decision": {
      const d = e.decision, slice = d.slice_ns === 1 ? " with the minimum slice" : d.slice_ns ? ` with a slice of ${length(d.slice_ns / 1e6)}` : "";
      return `${who} ${d.run ? "may run" : "waits"}${slice}: ${d.reason} (${d.policy})`;
    }
    case "order": {
      const o = e.order, by = o.uid !== undefined ? ` by uid ${o.uid}${o.by_command ? ` (${o.by_command})` : ""}` : "";
      return `${o.name} ${who}${by}${o.to ? `: ${o.from || "-"} -> ${o.to}` : ""}${o.refused ? ` refused${o.reason ? `: ${o.reason}` : ""}` : ""}`;
    }
    case "note":
      return `${e.note.name} ${who} ${e.note.text ?? ""}`;
    case "state":
      return `${e.state.what} ${who || e.device || ""} ${e.state.change}${e.state.class ? `: ${e.state.class}` : ""}`;
  }
  return "";
}

function drawLog() {
  const filter = $("filter").value.toLowerCase(), lines = [];
  const all = $("decisions").checked ? [...model.events, ...model.decisions].sort((a, b) => a.seq - b.seq) : model.events;
  for (let i = all.length - 1; i >= 0 && lines.length < 120; i--) {
    const e = all[i], text = sentence(e);
    if (filter && !`${e.kind} ${text}`.toLowerCase().includes(filter)) continue;
    const at = new Date(model.base + e.at_ns / 1e6);
    const stamp = `${at.toTimeString().slice(0, 8)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
    lines.push(make("li", { cls: e.order?.refused ? "refused" : "" }, make("time", { text: stamp }), make("b", { text: e.kind }), make("span", { text })));
  }
  $("log").replaceChildren(...lines);
}

// ---- Input

function setFollow(on) {
  view.follow = on;
  $("follow").textContent = on ? "Freeze" : "Follow";
}

function listen(t) {
  const at = (event) => (event.clientX - t.canvas.getBoundingClientRect().left) / t.canvas.clientWidth;
  t.canvas.addEventListener("wheel", (event) => {
    if (!event.deltaY) return;
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 30 : 1;
    view.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * lines * 0.002))), at(event));
  }, { passive: false });
  let dragged = 0;
  t.canvas.addEventListener("pointerdown", (event) => {
    t.canvas.setPointerCapture(event.pointerId);
    dragged = event.clientX;
  });
  t.canvas.addEventListener("pointermove", (event) => {
    if (event.buttons && Math.abs(event.clientX - dragged) > 0) {
      view.move((-(event.clientX - dragged) / t.canvas.clientWidth) * view.width, model.time());
      dragged = event.clientX;
      setFollow(false);
    }
    const box = t.canvas.getBoundingClientRect(), text = t.describe(model, event.clientX - box.left, event.clientY - box.top);
    t.tip.hidden = !text;
    t.tip.textContent = text;
    t.tip.style.left = `${Math.min(event.clientX - box.left + 12, box.width - t.tip.offsetWidth)}px`;
    t.tip.style.top = `${event.clientY - box.top + 34}px`;
  });
  t.canvas.addEventListener("pointerleave", () => (t.tip.hidden = true));
}

const themes = ["", "light", "dark"];
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("theme", name);
  $("theme").textContent = `Theme: ${name || "system"}`;
  readColours();
}

const keys = {
  " ": () => setFollow(!view.follow),
  "+": () => view.zoom(1 / 1.5),
  "=": () => view.zoom(1 / 1.5),
  "-": () => view.zoom(1.5),
  ArrowLeft: () => (setFollow(false), view.move(-view.width / 8, model.time())),
  ArrowRight: () => (setFollow(false), view.move(view.width / 8, model.time())),
  "0": () => (view.reset(), setFollow(true)),
  "/": () => $("filter").focus(),
  t: () => $("theme").click(),
  "?": () => $("keys").showModal(),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]), select, textarea, dialog")) return;
  if (event.key === " " && event.target.closest("button, input")) return; // it presses the button
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
$("follow").onclick = () => setFollow(!view.follow);
$("theme").onclick = () => setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme ?? "") + 1) % themes.length]);
$("closer").onclick = keys["+"];
$("wider").onclick = keys["-"];
$("help").onclick = () => $("keys").showModal();
$("filter").oninput = $("decisions").onchange = drawLog;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);

setTheme(localStorage.getItem("theme") ?? "");
forever("record", POLL, readRecord);
forever("rest", SLOW, readRest);
requestAnimationFrame(frame);

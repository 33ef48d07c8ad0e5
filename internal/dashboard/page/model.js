// The model: what the daemon has recorded lately, in bounded memory. Times are in
// milliseconds since the daemon was started.

const KEEP = 120e3; // how long spans, requests and waits are kept
const MAX_SPANS = 150e3; // of one device
const MAX_LOG = 500; // of each of the two lists

const ms = (ns) => ns / 1e6;

// Keeps the entries of a list that end after a time, once there are many older ones.
function trim(list, before, most) {
  let n = 0;
  while (n < list.length && (list[n].end < before || list.length - n > most)) n++;
  if (n > 1000 || list.length > most) list.splice(0, n);
}

export class Model {
  constructor() {
    this.clear();
  }

  clear() {
    this.began = 0; // the wall clock at the daemon's start, in ms
    this.now = 0; // of the daemon, at the last answer
    this.received = performance.now();
    this.next = 0;
    this.lost = 0;
    this.processes = new Map(); // by pid
    this.devices = new Map(); // by id
    this.requests = new Map(); // by pid
    this.waits = new Map(); // by pid
    this.decisions = []; // newest last; many, so that other events have a list of their own
    this.events = []; // the same
    this.delays = [];
    this.pressure = new Map(); // of devices, by id
    this.colours = new Map(); // number of a process within its class, by pid
  }

  // The daemon's time now.
  time() {
    return this.now + performance.now() - this.received;
  }

  addClock(answer) {
    const began = Date.parse(answer.began);
    const restarted = this.began && Math.abs(began - this.began) > 2000;
    if (restarted) this.clear();
    this.began = began;
    this.now = ms(answer.now_ns);
    this.received = performance.now();
    return !restarted;
  }

  setStatus(status) {
    this.status = status;
    for (const d of status.devices ?? []) this.device(d.id).about = d;
  }

  setProcesses(list) {
    this.processes = new Map(list.map((p) => [p.pid, p]));
    for (const p of list) this.number(p.pid, p.class);
    for (const known of [this.requests, this.waits]) {
      for (const [pid, all] of known) if (!this.processes.has(pid) && (all.at(-1)?.end ?? 0) < this.now - KEEP) known.delete(pid);
    }
  }

  device(id) {
    let d = this.devices.get(id);
    if (!d) this.devices.set(id, (d = { id, about: { id, index: this.devices.size }, spans: [] }));
    return d;
  }

  // The number of a process among those of its class, for its colour.
  number(pid, cls) {
    const known = this.colours.get(pid);
    if (known && known.cls === cls) return known.n;
    const used = new Set([...this.colours].filter(([other, c]) => c.cls === cls && other !== pid && this.processes.has(other)).map(([, c]) => c.n));
    let n = 0;
    while (used.has(n)) n++;
    this.colours.set(pid, { cls, n });
    if (this.colours.size > 4096) for (const other of this.colours.keys()) if (!this.processes.has(other)) this.colours.delete(other);
    return n;
  }

  addRecord(record) {
    if (!this.addClock(record)) return;
    this.lost += this.next ? record.lost : 0;
    this.next = record.next;
    for (const e of record.entries) this.add(e);
    const old = this.now - KEEP;
    for (const d of this.devices.values()) trim(d.spans, old, MAX_SPANS);
    for (const known of [this.requests, this.waits]) for (const all of known.values()) trim(all, old, 20e3);
    for (const log of [this.decisions, this.events]) if (log.length > 2 * MAX_LOG) log.splice(0, log.length - MAX_LOG);
  }

  add(e) {
    switch (e.kind) {
      case "span":
        this.addSpan(e);
        break;
      case "request":
        this.list(this.requests, e.pid).push({ begin: ms(e.request.begin_ns), end: ms(e.request.end_ns), slo: ms(e.request.slo_ns ?? 0), late: !!e.request.late, estimated: !!e.request.estimated });
        break;
      case "wait":
        this.list(this.waits, e.pid).push({ begin: ms(e.wait.begin_ns), end: ms(e.wait.end_ns), holder: e.wait.holder, estimated: !!e.wait.estimated });
        break;
      case "decision":
        this.decisions.push(e);
        break;
      case "order":
      case "note":
      case "state":
        this.events.push(e);
    }
  }

  // A span that goes on in the next one is one span.
  addSpan(e) {
    const spans = this.device(e.device).spans, s = e.span;
    const begin = ms(s.begin_ns), end = ms(s.end_ns), last = spans.at(-1);
    if (last && last.what === s.what && last.pid === (e.pid ?? 0) && Math.abs(last.end - begin) < 1e-3 && last.left !== "preempted") {
      last.end = end;
      last.left = s.left;
      return;
    }
    spans.push({ begin, end, what: s.what, pid: e.pid ?? 0, left: s.left });
  }

  list(map, pid) {
    let all = map.get(pid);
    if (!all) map.set(pid, (all = []));
    return all;
  }

  // How long each process held a device, and what else it did, in the last `span`, and for how
  // much of that it is known.
  use(device, span) {
    const to = this.now, from = Math.max(to - span, device.spans[0]?.begin ?? to);
    const held = new Map(), other = { switch: 0, idle: 0, unknown: 0 };
    let switches = 0;
    for (let i = device.spans.length - 1; i >= 0; i--) {
      const s = device.spans[i];
      if (s.end <= from) break;
      const part = Math.min(s.end, to) - Math.max(s.begin, from);
      if (part <= 0) continue;
      if (s.what === "held") held.set(s.pid, (held.get(s.pid) ?? 0) + part);
      else other[s.what] = (other[s.what] ?? 0) + part;
      if (s.what === "switch") switches++;
    }
    return { held, other, switches, known: Math.max(to - from, 1e-9) };
  }

  // The part of the last `span` in which a process held devices, or null if it is not known.
  share(pid, span) {
    let sum = 0, known = false;
    for (const d of this.devices.values()) {
      if (!d.spans.length) continue;
      const use = this.use(d, span);
      known = true;
      sum += (use.held.get(pid) ?? 0) / use.known;
    }
    return known ? sum : null;
  }

  // The latencies of a process's requests, and what they would have been alone: without the
  // time in which it waited while others held the device.
  latencies(pid, span) {
    const from = this.now - span, waits = this.waits.get(pid) ?? [];
    const all = (this.requests.get(pid) ?? []).filter((r) => r.end > from);
    let w = 0;
    const alone = all.map((r) => {
      while (w < waits.length && waits[w].end < r.begin) w++;
      let waited = 0;
      for (let i = w; i < waits.length && waits[i].begin < r.end; i++) {
        if (waits[i].holder.kind === "idle") continue;
        waited += Math.max(0, Math.min(waits[i].end, r.end) - Math.max(waits[i].begin, r.begin));
      }
      return Math.max(r.end - r.begin - waited, 0);
    });
    const now = all.map((r) => r.end - r.begin);
    const slo = all.at(-1)?.slo ?? 0;
    return { now, alone, slo, late: all.filter((r) => r.late).length, estimated: all.some((r) => r.estimated) };
  }

  name(pid) {
    if (!pid) return "a hidden process";
    const p = this.processes.get(pid);
    if (!p) return `${pid}`;
    const words = (p.command || "").split(" "), first = words[0].split("/").at(-1);
    const base = first.endsWith(":") ? `${first} ${words[1] ?? ""}` : first;
    return base ? `${pid} ${base}` : `${pid}`;
  }
}

export function quantile(sorted, q) {
  if (!sorted.length) return NaN;
  return sorted[Math.min(sorted.length - 1, Math.ceil(q * sorted.length) - 1 < 0 ? 0 : Math.ceil(q * sorted.length) - 1)];
}

// The model: what the daemon has recorded lately, in bounded memory. Times are in
// milliseconds since the daemon was started.

const KEEP = 120e3; // how long spans, requests and waits are kept
const MAX_SPANS = 150e3; // of one device
const MAX_LOG = 500; // of each of the two lists

const ms = (ns) => ns / 1e6;

const MAX_REQUESTS = 60e3; // of one process

// Keeps the entries of a list that end after a time, once there are many older ones.
// list.from is from when on it is complete.
function trim(list, before, most) {
  let n = 0;
  while (n < list.length && (list[n].end < before || list.length - n > most)) n++;
  if (n < 1000 && list.length <= most) return;
  list.from = list[n - 1].end;
  list.splice(0, n);
}

// The first index whose entry ends after a time.
export function firstAfter(list, time) {
  let low = 0, high = list.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (list[mid].end <= time) low = mid + 1;
    else high = mid;
  }
  return low;
}

export class Model {
  constructor() {
    this.clear();
  }

  clear() {
    this.began = 0; // the wall clock at the daemon's start, in ms
    this.base = 0; // the same by the clock as it is set now
    this.from = Infinity; // from when on the record is complete
    this.keep = Infinity; // what is after this is kept: a paused view shows it
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
    this.base = Date.parse(answer.wall) - this.now;
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
    if (!this.next || record.lost) this.from = record.entries.length ? ms(record.entries[0].at_ns) : this.now;
    this.lost += this.next ? record.lost : 0;
    this.next = record.next;
    for (const e of record.entries) this.add(e);
    const old = Math.min(this.now - KEEP, this.keep);
    for (const d of this.devices.values()) trim(d.spans, old, MAX_SPANS);
    for (const known of [this.requests, this.waits]) for (const all of known.values()) trim(all, old, MAX_REQUESTS);
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
    const to = this.now, from = to - span;
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
    let known = other.switch + other.idle;
    for (const took of held.values()) known += took;
    return { held, other, switches, known: Math.max(known, 1e-9) };
  }

  // The devices of a process.
  devicesOf(p) {
    return new Set((p.queues ?? []).map((q) => q.device));
  }

  // Returns a function for the part of the last `span` in which a process held its devices;
  // null if it is not known.
  shares(span) {
    const uses = new Map();
    for (const d of this.devices.values()) if (d.spans.length) uses.set(d.id, this.use(d, span));
    return (p) => {
      let sum = 0, known = false;
      for (const id of this.devicesOf(p)) {
        const use = uses.get(id);
        if (!use) continue;
        known = true;
        sum += (use.held.get(p.pid) ?? 0) / use.known;
      }
      return known ? sum : null;
    };
  }

  // The class of a process, also of one that is gone.
  classOf(pid) {
    return this.processes.get(pid)?.class ?? this.colours.get(pid)?.cls ?? "standard";
  }

  // Processes that made requests in the last minute, those with the most first.
  requesting() {
    const busy = [];
    for (const [pid, all] of this.requests) {
      const n = all.length - firstAfter(all, this.now - 60e3);
      if (n) busy.push([pid, n]);
    }
    return busy.sort((a, b) => b[1] - a[1]).map(([pid]) => pid);
  }

  // The latencies of a process's requests, and what they would have been alone: without the
  // time in which it waited while others held the device. Requests may overlap each other, and
  // on several devices waits may.
  latencies(pid, span) {
    const from = this.now - span, waits = (this.waits.get(pid) ?? []).filter((w) => w.holder.kind !== "idle");
    const list = this.requests.get(pid) ?? [], all = list.slice(firstAfter(list, from));
    const alone = all.map((r) => {
      let waited = 0, until = r.begin;
      for (let i = firstAfter(waits, r.begin); i < waits.length && waits[i].begin < r.end; i++) {
        const begin = Math.max(waits[i].begin, until), end = Math.min(waits[i].end, r.end);
        if (end <= begin) continue;
        waited += end - begin;
        until = end;
      }
      return Math.max(r.end - r.begin - waited, 0);
    });
    const sort = (values) => values.sort((a, b) => a - b);
    const known = Math.max(this.now - Math.max(from, this.from, list.from ?? -Infinity), 1);
    return {
      now: sort(all.map((r) => r.end - r.begin)),
      alone: sort(alone),
      slo: all.at(-1)?.slo ?? 0,
      late: all.filter((r) => r.late).length,
      rate: all.length / (known / 1e3),
    };
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
  return sorted[Math.max(0, Math.ceil(q * sorted.length) - 1)];
}

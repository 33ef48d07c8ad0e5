import { firstAfter as from } from "./model.js";

// The timeline of a device: a row with the processes that held it, and a row for each online process with
// its requests. What a request waited for has the colour of the holder.

const ROW = 26, REQUESTS = 16, GAP = 4, AXIS = 18, ROWS = 8;

export class View {
  constructor() {
    this.follow = true;
    this.width = 10e3; // ms
    this.end = 0;
  }
  range(now) {
    if (this.follow) this.end = now - 150; // what is newer has not arrived
    return [this.end - this.width, this.end];
  }
  zoom(factor, at = 1) {
    const fixed = this.end - this.width * (1 - at);
    this.width = Math.min(110e3, Math.max(0.05, this.width * factor));
    if (!this.follow) this.end = fixed + this.width * (1 - at);
  }
  move(by, now) {
    this.follow = false;
    this.end = Math.min(now, this.end + by);
  }
  reset() {
    this.follow = true;
    this.width = 10e3;
  }
}

export class Timeline {
  constructor(parent, device, paint) {
    this.device = device;
    this.paint = paint; // colours
    this.root = document.createElement("div");
    this.root.className = "timeline";
    this.title = document.createElement("h3");
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.root.append(this.title, this.canvas, this.tip);
    parent.append(this.root);
  }

  // Processes of this device with requests: the busiest, in a lasting order.
  rows(model) {
    const here = (pid) => {
      const p = model.processes.get(pid);
      return !p || model.devicesOf(p).has(this.device.id);
    };
    return model.requesting().filter(here).slice(0, ROWS).sort((a, b) => a - b);
  }

  draw(model, view, now) {
    const about = this.device.about, title = `${deviceName(about)} ${about.model ?? ""}`;
    if (this.title.textContent !== title) {
      this.title.textContent = title;
      this.canvas.setAttribute("aria-label", `${title}: the processes that held the device, as a timeline`);
    }
    if (!this.rowsAt || now - this.rowsAt > 500) [this.rowList, this.rowsAt] = [this.rows(model), now];
    const rows = this.rowList;
    const css = this.canvas.clientWidth, height = ROW + rows.length * (REQUESTS + GAP) + AXIS, scale = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(css * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(css * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.height = `${height}px`;
    }
    const g = this.canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, css, height);
    const [t0, t1] = view.range(now);
    this.last = { t0, t1, css, rows };
    this.held(g, t0, t1, css);
    rows.forEach((pid, i) => this.requests(g, model, pid, t0, t1, css, ROW + GAP + i * (REQUESTS + GAP)));
    this.axis(g, t0, t1, css, height, now);
  }

  // Spans narrower than a pixel are added up: the pixel has the colour of what took most of it.
  held(g, t0, t1, css) {
    const spans = this.device.spans, perMs = css / (t1 - t0);
    g.fillStyle = this.paint.back;
    g.fillRect(0, 0, css, ROW);
    let pixel = -1, sums = new Map();
    const flush = () => {
      if (pixel < 0 || !sums.size) return;
      let best = "", most = 0;
      for (const [colour, sum] of sums) if (sum > most) [best, most] = [colour, sum];
      if (best) {
        g.fillStyle = best;
        g.fillRect(pixel, 0, 1, ROW);
      }
      sums.clear();
    };
    for (let i = from(spans, t0); i < spans.length && spans[i].begin < t1; i++) {
      const s = spans[i], colour = this.paint.span(s);
      const x0 = Math.max(0, (s.begin - t0) * perMs), x1 = Math.min(css, (s.end - t0) * perMs);
      if (x1 - x0 >= 1.5) {
        flush();
        pixel = -1;
        if (!colour) continue;
        g.fillStyle = colour;
        g.fillRect(x0, 0, x1 - x0, ROW);
        continue;
      }
      const at = Math.floor(x0);
      if (at !== pixel) {
        flush();
        pixel = at;
      }
      sums.set(colour, (sums.get(colour) ?? 0) + x1 - x0);
    }
    flush();
  }

  requests(g, model, pid, t0, t1, css, y) {
    const perMs = css / (t1 - t0), colour = this.paint.process(pid);
    const all = model.requests.get(pid) ?? [], waits = model.waits.get(pid) ?? [];
    g.globalAlpha = 0.35;
    g.fillStyle = this.paint.line;
    g.fillRect(0, y + REQUESTS - 1, css, 1);
    g.globalAlpha = 1;
    for (let i = from(all, t0); i < all.length && all[i].begin < t1; i++) {
      const r = all[i], x = (r.begin - t0) * perMs, w = Math.max((r.end - r.begin) * perMs, 1);
      g.fillStyle = r.late ? this.paint.bad : colour;
      g.fillRect(x, y, w, REQUESTS - 2);
    }
    for (let i = from(waits, t0); i < waits.length && waits[i].begin < t1; i++) {
      const w = waits[i], x = (w.begin - t0) * perMs, width = (w.end - w.begin) * perMs;
      if (width < 0.5) continue;
      g.fillStyle = w.holder.kind === "process" ? this.paint.process(w.holder.pid) : this.paint.other(w.holder.kind);
      g.fillRect(x, y + REQUESTS - 6, width, 4);
    }
    g.fillStyle = this.paint.text;
    g.font = "11px system-ui, sans-serif";
    const label = model.name(pid);
    g.globalAlpha = 0.75;
    g.fillStyle = this.paint.card;
    g.fillRect(2, y + 1, g.measureText(label).width + 6, 12);
    g.globalAlpha = 1;
    g.fillStyle = this.paint.text;
    g.fillText(label, 5, y + 11);
  }

  axis(g, t0, t1, css, height, now) {
    const wide = t1 - t0, most = Math.max(2, css / 90);
    let step = 10 ** Math.floor(Math.log10(wide / most));
    for (const k of [1, 2, 5, 10]) {
      if (wide / (step * k) <= most) {
        step *= k;
        break;
      }
    }
    g.fillStyle = this.paint.soft;
    g.font = "11px system-ui, sans-serif";
    let right = -1; // of the last label
    for (let t = Math.ceil((t0 - now) / step) * step; t <= t1 - now; t += step) {
      const x = ((t + now - t0) / wide) * css, label = time(t, step), w = g.measureText(label).width;
      g.fillRect(x, height - AXIS, 1, 4);
      if (x - w / 2 > right && x - w / 2 >= 0 && x + w / 2 <= css) {
        g.fillText(label, x - w / 2, height - 3);
        right = x + w / 2 + 8;
      }
    }
  }

  // What is under the pointer, as text.
  describe(model, x, y) {
    if (!this.last) return "";
    const { t0, t1, css, rows } = this.last, t = t0 + (x / css) * (t1 - t0);
    if (y < ROW) {
      const s = this.device.spans[from(this.device.spans, t)];
      if (!s || s.begin > t) return "";
      const who = s.what === "held" ? model.name(s.pid) : s.what === "switch" ? `switch to ${model.name(s.pid)}` : s.what;
      return `${who}\n${length(s.end - s.begin)}${s.left === "preempted" ? ", then preempted" : ""}`;
    }
    const pid = rows[Math.floor((y - ROW - GAP / 2) / (REQUESTS + GAP))];
    const all = model.requests.get(pid) ?? [], r = all[from(all, t)];
    if (!r || r.begin > t) return pid ? model.name(pid) : "";
    const waited = (model.waits.get(pid) ?? []).filter((w) => w.end > r.begin && w.begin < r.end);
    const lines = waited.slice(0, 5).map((w) => `waited ${length(w.end - w.begin)} for ${w.holder.kind === "process" ? model.name(w.holder.pid) : w.holder.kind}`);
    return [`request of ${model.name(pid)}: ${length(r.end - r.begin)}${r.late ? ", later than its SLO" : ""}`, ...lines].join("\n");
  }
}

export function deviceName(about) {
  return about.index >= 0 ? `GPU ${about.index}` : about.id;
}

export function length(ms) {
  if (!(ms >= 0)) return "-";
  if (ms < 1) return `${(ms * 1e3).toFixed(0)} us`;
  if (ms < 1000) return `${ms.toPrecision(3)} ms`;
  return `${(ms / 1e3).toPrecision(3)} s`;
}

function time(ms, step) {
  if (Math.abs(ms) < step / 2) return "now";
  if (step >= 1000) return `${(ms / 1e3).toFixed(0)} s`;
  if (step >= 1) return Math.abs(ms) >= 1000 ? `${(ms / 1e3).toFixed(3)} s` : `${ms.toFixed(0)} ms`;
  return `${(ms * 1e3).toFixed(0)} us`;
}

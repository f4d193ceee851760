// The page fetches status.json at intervals and shows it. Text goes into the document as text
// nodes only, because programs choose their names.
"use strict";

const interval = 2000; // ms between refreshes
const $ = id => document.getElementById(id);

function node(tag, text, name) {
  const n = document.createElement(tag);
  if (text !== undefined) n.textContent = text;
  if (name) n.className = name;
  return n;
}

// Numbers for people: 1.2 M, 3.4 Gb/s, 12 us.
function scaled(v, units, step) {
  let i = 0;
  while (Math.abs(v) >= step && i < units.length - 1) { v /= step; i++; }
  const digits = v === 0 || Math.abs(v) >= 100 || Number.isInteger(v) ? 0 : Math.abs(v) >= 10 ? 1 : 2;
  return v.toFixed(digits) + (units[i] ? " " + units[i] : "");
}
const count = v => scaled(v, ["", "k", "M", "G", "T"], 1000);
const bits = v => scaled(v * 8, ["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"], 1000);
const bytes = v => scaled(v, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
const nanos = v => v ? scaled(v, ["ns", "us", "ms", "s"], 1000) : "-";
const hex = v => "0x" + v.toString(16).padStart(6, "0");

function age(from, to) {
  let s = Math.max(0, Math.round((Date.parse(to) - Date.parse(from)) / 1000));
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + s % 60 + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor(s % 86400 / 3600) + " h";
}

// A column: title, value for sorting, text (default: the value), and whether it is a number.
const num = (title, value, text, bad) => ({title, value, text, bad, number: true});
const str = (title, value) => ({title, value});
const rate = (o, key) => o.rates ? o.rates[key] : undefined;

const tables = {
  programs: [
    num("slot", p => p.slot), str("program", p => p.name), num("PID", p => p.pid),
    num("user", p => p.uid), num("age", p => Date.parse(now) - Date.parse(p.joined),
      p => age(p.joined, now)),
    num("QPs", p => p.objects.qps), num("MRs", p => p.objects.mrs),
    num("memory", p => p.objects.memory_bytes, p => bytes(p.objects.memory_bytes)),
    num("sent", p => rate(p, "sent_bytes"), p => bits(p.rates.sent_bytes)),
    num("received", p => rate(p, "rcvd_bytes"), p => bits(p.rates.rcvd_bytes)),
    num("sent pkt/s", p => rate(p, "sent_pkts"), p => count(p.rates.sent_pkts)),
    num("rcvd pkt/s", p => rate(p, "rcvd_pkts"), p => count(p.rates.rcvd_pkts)),
    num("compl./s", p => rate(p, "completions"), p => count(p.rates.completions)),
    num("retr./s", p => rate(p, "retransmits"), p => count(p.rates.retransmits),
      p => p.rates.retransmits > 0),
    num("RTT p50", p => p.rtts.p50_ns, p => nanos(p.rtts.p50_ns)),
    num("RTT p99", p => p.rtts.p99_ns, p => nanos(p.rtts.p99_ns)),
    str("error", p => p.error || ""),
  ],
  qps: [
    {...num("QP", q => q.qpn, q => hex(q.qpn)), choose: q => q.slot + " " + q.qpn},
    str("program", q => q.program), str("type", q => q.type), str("state", q => q.state),
    str("peer", q => q.peer), num("peer QP", q => q.remote_qpn || undefined, q => hex(q.remote_qpn)),
    num("class", q => q.class),
    num("sent", q => q.metered ? rate(q, "sent_bytes") : undefined, q => bits(q.rates.sent_bytes)),
    num("received", q => q.metered ? rate(q, "rcvd_bytes") : undefined,
      q => bits(q.rates.rcvd_bytes)),
    num("req/s", q => rate(q, "requested_psns"), q => count(q.rates.requested_psns)),
    num("peer req/s", q => rate(q, "accepted_psns"), q => count(q.rates.accepted_psns)),
    num("retr.", q => q.retransmits, q => count(q.retransmits), q => q.retransmits > 0),
    num("RTT", q => q.rtt_ns || undefined, q => nanos(q.rtt_ns)),
    num("p50", q => q.rtts?.p50_ns || undefined, q => nanos(q.rtts.p50_ns)),
    num("p99", q => q.rtts?.p99_ns || undefined, q => nanos(q.rtts.p99_ns)),
    num("min RTT", q => q.min_rtt_ns || undefined, q => nanos(q.min_rtt_ns)),
    num("window", q => q.window_packets), num("in flight", q => q.in_flight_packets),
    num("path rate", q => q.delivery_rate || undefined, q => bits(q.delivery_rate)),
    num("errors", q => q.completion_errors, undefined, q => q.completion_errors > 0),
  ],
  addresses: [num("GID index", a => a.index), str("address", a => a.addr), str("GID", a => a.gid),
    str("kind", a => a.kind)],
};
const order = {programs: {column: 0, down: false}, qps: {column: 0, down: false},
  addresses: {column: 0, down: false}};
let now, snapshot, chosen; // chosen: slot and number of a queue pair

function heading(id) {
  const row = node("tr");
  tables[id].forEach((c, i) => {
    const th = node("th", undefined, c.number ? "number" : "");
    th.scope = "col";
    const b = node("button", c.title);
    b.type = "button";
    b.addEventListener("click", () => {
      const o = order[id];
      o.down = o.column === i ? !o.down : !!c.number; // numbers: the largest first
      o.column = i;
      show();
    });
    th.append(b);
    row.append(th);
  });
  $(id).tHead.append(row);
}

// choice returns a button that shows the round trips of a queue pair, or those of all again.
function choice(text, key) {
  const b = node("button", text);
  b.type = "button";
  b.title = "show its round trips";
  b.setAttribute("aria-pressed", chosen === key);
  b.addEventListener("click", () => {
    chosen = chosen === key ? undefined : key;
    show();
  });
  return b;
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === undefined) return -1;
  if (b === undefined) return 1;
  return a < b ? -1 : 1;
}

function fill(id, rows) {
  const {column, down} = order[id], c = tables[id][column];
  rows = rows.map(r => [c.value(r), r]);
  rows.sort((a, b) => compare(a[0], b[0]) * (down ? -1 : 1));
  [...$(id).tHead.rows[0].cells].forEach((th, i) => {
    if (i === column) th.setAttribute("aria-sort", down ? "descending" : "ascending");
    else th.removeAttribute("aria-sort");
  });
  const body = document.createDocumentFragment();
  for (const [, r] of rows) {
    const tr = node("tr");
    for (const c of tables[id]) {
      const v = c.value(r);
      const missing = v === undefined;
      const text = missing ? "-" : c.text ? c.text(r) : v;
      const td = node("td", c.choose ? "" : text, c.number ? "number" : "");
      if (c.choose) td.append(choice(text, c.choose(r)));
      if (missing) td.classList.add("none");
      else if (c.bad && c.bad(r)) td.classList.add("bad");
      tr.append(td);
    }
    body.append(tr);
  }
  $(id).tBodies[0].replaceChildren(body);
}

function histogram(s, qps) {
  const counts = s.rtt_bounds_ns.map(() => 0).concat(0);
  const one = qps.find(q => q.slot + " " + q.qpn === chosen);
  if (!one) chosen = undefined; // it is gone
  for (const p of one ? [one] : s.programs)
    p.rtts?.counts.forEach((n, i) => { counts[i] += n; });
  const total = counts.reduce((a, b) => a + b, 0), most = Math.max(...counts);
  const first = counts.findIndex(n => n > 0), last = counts.findLastIndex(n => n > 0);
  const box = $("rtt");
  box.replaceChildren();
  const whose = one ? "queue pair " + hex(one.qpn) + " of " + one.program : "RC queue pairs";
  $("rtt-text").textContent = (total ? count(total) + " round trips of " + whose + " since the " +
    "start; each bar is labeled with its upper bound" : "no round trips of " + whose + " yet");
  box.hidden = !total;
  const svg = "http://www.w3.org/2000/svg";
  for (let i = first; total && i <= last; i++) {
    const bound = i < s.rtt_bounds_ns.length ? nanos(s.rtt_bounds_ns[i]) : "more";
    const bar = node("div");
    bar.title = "up to " + bound + ": " + counts[i];
    const picture = document.createElementNS(svg, "svg");
    picture.setAttribute("viewBox", "0 0 1 100");
    picture.setAttribute("preserveAspectRatio", "none");
    const rect = document.createElementNS(svg, "rect");
    const height = counts[i] ? Math.max(1, 100 * counts[i] / most) : 0;
    for (const [k, v] of Object.entries({x: 0, y: 100 - height, width: 1, height}))
      rect.setAttribute(k, v);
    picture.append(rect);
    const share = 100 * counts[i] / total;
    bar.append(node("span", counts[i] ? (share < 0.1 ? "<0.1" : share.toFixed(1)) + " %" : ""),
      picture, node("span", bound));
    box.append(bar);
  }
}

function tiles(s) {
  const sum = key => s.programs.reduce((n, p) => n + (rate(p, key) || 0), 0);
  const list = [["sent", bits(sum("sent_bytes"))], ["received", bits(sum("rcvd_bytes"))],
    ["packets sent/s", count(sum("sent_pkts"))], ["packets received/s", count(sum("rcvd_pkts"))],
    ["retransmitted/s", count(sum("retransmits"))],
    ["queue pairs", s.programs.reduce((n, p) => n + p.objects.qps, 0)],
    ["programs", s.programs.length]];
  $("tiles").replaceChildren(...list.map(([title, value]) => {
    const t = node("div", undefined, "tile");
    t.append(node("b", value), node("span", title));
    return t;
  }));
}

function show() {
  const s = snapshot, d = s.device;
  now = s.time;
  $("device").textContent = d.name;
  document.title = "gorxe " + d.name;
  const facts = [d.datapath, d.queues + (d.queues === 1 ? " queue" : " queues"), "MTU " + d.mtu,
    "path MTU " + d.path_mtu, "gorxe " + s.version, "up for " + age(s.started, now)];
  if (d.mac) facts.splice(1, 0, d.mac);
  if (s.socket) facts.push("socket " + s.socket);
  $("facts").textContent = facts.join(" · ");
  const why = d.port_reason && "UDP sockets instead of AF_XDP: " + d.port_reason;
  $("notes").textContent = [why, d.note].filter(t => t).join(" · ");
  tiles(s);
  fill("programs", s.programs);
  fill("addresses", d.addresses);
  const wanted = $("filter").value.toLowerCase().split(/\s+/).filter(w => w);
  const all = s.programs.flatMap(p => p.qps.map(q => ({...q, program: p.name, slot: p.slot,
    peer: q.remote === "::" ? "" : q.remote.replace(/^::ffff:/, "")})));
  histogram(s, all);
  const rows = all.filter(q => wanted.every(w =>
    [q.program, q.peer, q.state, q.type, hex(q.qpn)].join(" ").toLowerCase().includes(w)));
  const omitted = s.programs.reduce((n, p) => n + p.qps_omitted, 0);
  $("shown").textContent = (rows.length < all.length ? rows.length + " of " : "") + all.length +
    (omitted ? " (" + omitted + " more are not listed)" : "");
  fill("qps", rows);
}

function state(text, good) {
  $("state").textContent = text;
  $("state").className = good ? "good" : "bad";
}

async function refresh() {
  if (!document.hidden) {
    try {
      const r = await fetch("status.json", {cache: "no-store", signal: AbortSignal.timeout(5000)});
      if (!r.ok) throw new Error(r.status + " " + r.statusText);
      snapshot = await r.json();
      show();
      const up = snapshot.device.up;
      state(up ? "link up" : "link down", up);
    } catch (e) {
      state("no answer from gorxe (" + e.message + "); the page shows the last data", false);
    }
  }
  setTimeout(refresh, interval);
}

Object.keys(tables).forEach(heading);
$("filter").addEventListener("input", () => { if (snapshot) show(); });
refresh();

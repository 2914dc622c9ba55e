// pool.js - the pool of each device: a bar of its uses, the map of its pages, and the same as a
// table; what is under the pointer or the cursor is told in a tip, with the pages around it.

import { el, setText, setStyle, setClass, show, button, drawSoon, byId } from "./dom.js";
import { bytes, int, percent, plain, plural } from "./format.js";
import { USES, useOf, ownerOf } from "./store.js";
import { Palette, dark, ownerColor } from "./colors.js";
import { PageMap } from "./pagemap.js";
import { Rows } from "./rows.js";

// Uses in the order of the bar, with the member of device.pages that counts them.  On a GPU warm
// and parked pages are of host memory, and no part of the device.
const BAR = [
    [1, "weight"], [2, "kv"], [3, "cached"], [4, "warm"], [5, "parked"], [6, "quarantine"],
    [7, "absent"], [0, "free"],
];
const inHost = (device, use) => !device.one_memory && (use === 4 || use === 5);
const OWNERS_MAX = 24;
const LOUPE_COLS = 19;
const LOUPE_ROWS = 5;
const LOUPE_CELL = 10;

export class Pool {
    constructor(store) {
        this.store = store;
        this.palette = new Palette();
        this.bar = new Palette(); // the same colours, by use
        this.bar.set("use", -1);
        this.root = byId("devices");
        this.shown = new Map(); // device id -> Device
        this.tip = new Tip(this);
        this.asTable = false;
        this.controls();
        store.on("reset", () => this.reset());
        store.on("devices", (ids) => ids.forEach((id) => this.device(id)));
        store.on("map", (id) => this.shown.get(id)?.newMap(store.maps.get(id)));
        store.on("pages", (id, runs) => this.shown.get(id)?.pages(runs));
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolor());
    }

    controls() {
        const by = button("By owner", { class: "small", "aria-pressed": false,
            title: "Colour of a page: its owner, or its use" }, () => {
            const use = this.palette.by === "owner";
            this.palette.set(use ? "use" : "owner", this.palette.only);
            setText(by, use ? "By use" : "By owner");
            by.setAttribute("aria-pressed", String(use));
            this.redraw();
        });
        const table = button("Table", { class: "small", "aria-pressed": false,
            title: "Pages of each owner and use as a table" }, () => {
            this.asTable = !this.asTable;
            table.setAttribute("aria-pressed", String(this.asTable));
            for (const d of this.shown.values()) d.asTable(this.asTable);
        });
        const wide = button("Enlarge", { class: "small wide-only", "aria-pressed": false,
            title: "The pool over the whole window (Escape ends it)" }, () => this.enlarge());
        this.wide = wide;
        document.addEventListener("keydown", (e) => {
            if (e.key === "Escape" && this.enlarged && !document.querySelector("dialog[open]")) {
                this.enlarge();
            }
        });
        byId("pool-tools").append(by, table, wide);
    }

    enlarge() {
        this.enlarged = !this.enlarged;
        setClass(byId("board"), "pool-only", this.enlarged);
        setText(this.wide, this.enlarged ? "Reduce" : "Enlarge");
        this.wide.setAttribute("aria-pressed", String(this.enlarged));
        for (const d of this.shown.values()) d.listOwners();
    }

    reset() {
        for (const [id, device] of this.shown) {
            if (!this.store.devices.has(id)) {
                device.root.remove();
                this.shown.delete(id);
            }
        }
        for (const id of this.store.devices.keys()) {
            this.device(id);
            const map = this.store.maps.get(id);
            if (map) this.shown.get(id).newMap(map);
        }
    }

    device(id) {
        if (!this.shown.has(id)) {
            const device = new Device(this, id);
            this.shown.set(id, device);
            this.root.append(device.root);
            device.asTable(this.asTable);
        }
        drawSoon(this.shown.get(id));
    }

    /** The pages of one model stand out; -1: of none. */
    highlight(id) {
        if (this.palette.set(this.palette.by, id)) this.redraw();
    }

    recolor() {
        this.palette.renew();
        this.bar.renew();
        for (const d of this.shown.values()) d.recolor();
        this.redraw();
    }

    redraw() {
        for (const d of this.shown.values()) {
            d.map.redraw();
            d.table?.again();
        }
    }

    ownerName(code) {
        const owner = ownerOf(code);
        return owner < 0 ? "no owner" : plain(this.store.modelName(owner));
    }

    /** A page in words: "page 812 of 1,024: chat, KV; run of 37 pages, 800 to 836". */
    describe(device, page) {
        const map = this.store.maps.get(device);
        const code = map.codes[page];
        const [first, end] = this.shown.get(device).map.run(page);
        const owner = ownerOf(code) < 0 ? "" : this.ownerName(code) + ", ";
        const run = end - first === 1 ? "alone" :
            `run of ${int(end - first)}, ${int(first)} to ${int(end - 1)}`;
        const what = owner + (USES[useOf(code)] || "unknown use");
        return { page: `page ${int(page)}`, what, run };
    }
}

/** One device of the pool. */
class Device {
    constructor(pool, id) {
        this.pool = pool;
        this.id = id;
        this.name = el("h3", {});
        this.about = el("span", { class: "about" });
        this.flags = el("span", { class: "flags" });
        this.total = el("span", { class: "num" });
        this.segments = BAR.map(([use]) => {
            const segment = el("span", { class: "seg" });
            setStyle(segment, "background-color", pool.bar.css(use));
            return segment;
        });
        this.bar = el("div", { class: "bar", role: "img" }, ...this.segments);
        this.counts = BAR.map(([use]) => el("b", { class: "num" }));
        this.swatches = BAR.map(([use]) => {
            const swatch = el("i", { class: "swatch use-" + use });
            setStyle(swatch, "background-color", pool.bar.css(use));
            return swatch;
        });
        this.keys = BAR.map(([use], i) =>
            el("li", {}, this.swatches[i], USES[use], this.counts[i]));
        this.map = new PageMap(pool.palette, (page, how, place) => this.pointed(page, how, place));
        this.tableBox = el("div", { class: "scroll table-box", hidden: true, tabindex: 0 });
        this.root = el("section", { class: "device" },
            el("div", { class: "device-head" }, this.name, this.about, this.flags, this.total),
            this.bar, el("ul", { class: "keys" }, ...this.keys),
            this.owners = el("ul", { class: "keys owners" }), this.map.box, this.tableBox);
    }

    recolor() {
        BAR.forEach(([use], i) => {
            setStyle(this.segments[i], "background-color", this.pool.bar.css(use));
            setStyle(this.swatches[i], "background-color", this.pool.bar.css(use));
        });
    }

    newMap(map) {
        this.map.set(map);
        this.tabulate();
        this.listOwners();
    }

    pages(runs) {
        this.map.changed(runs);
        if (!this.timer) {
            this.timer = setTimeout(() => {
                this.timer = 0;
                this.tabulate();
                this.listOwners();
            }, 1000);
        }
        if (this.map.at >= 0) this.pool.tip.refresh();
    }

    draw() {
        const d = this.pool.store.devices.get(this.id);
        if (!d) return false;
        const p = d.pages;
        setText(this.name, plain(d.name));
        setText(this.about, plain(d.about));
        this.about.title = plain(d.about);
        const flags = [d.lost && "lost", d.thrashing && "thrashing",
            d.drill !== "none" && "drill: " + d.drill];
        setText(this.flags, flags.filter(Boolean).join(", "));
        setClass(this.root, "lost", d.lost);
        setText(this.total, bytes(p.total * d.page_bytes));
        const shown = BAR.reduce((n, [use, key]) => n + (inHost(d, use) ? 0 : p[key] || 0), 0) || 1;
        const words = [];
        BAR.forEach(([use, key], i) => {
            const n = p[key] || 0;
            const host = inHost(d, use);
            const size = bytes(n * d.page_bytes);
            const part = host ? size + " in host memory" : percent(n / shown);
            setStyle(this.segments[i], "flex-grow", host ? "0" : String(n / shown));
            show(this.keys[i], n > 0 || (use < 4 && !host));
            setText(this.counts[i], host ? part : int(n));
            this.keys[i].title = `${USES[use]}: ${host ? "" : size + ", "}${part}`;
            if (n) words.push(`${USES[use]} ${part}`);
        });
        this.bar.setAttribute("aria-label", `${plain(d.name)}: ${words.join(", ")}`);
        this.map.canvas.setAttribute("aria-label", `Map of ${plural(p.total, "page")} of ` +
            `${plain(d.name)}. Arrow keys move by page and row, n and p by run.`);
        return false;
    }

    pointed(page, how, place) {
        this.pool.tip.at(page < 0 ? null : { device: this.id, page, how, place });
    }

    asTable(on) {
        show(this.tableBox, on);
        show(this.map.box, !on);
        if (on) this.tabulate();
        else this.map.redraw();
    }

    /** The table: pages of each owner and use. */
    tabulate() {
        if (this.tableBox.hidden) return;
        const map = this.pool.store.maps.get(this.id);
        if (!map) return;
        const page = this.pool.store.devices.get(this.id)?.page_bytes || 0;
        this.sums = sums(map, page);
        if (!this.table) {
            const table = el("table", { class: "pages" },
                el("caption", { class: "sr" }, "Pages by owner and use"));
            this.tableBox.append(table);
            this.table = new Rows(table, this.columns(), (code) => this.sums.get(code));
        }
        this.table.reset(this.sums.keys());
    }

    /** In the enlarged pool, which has no table of models beside it: the owners with most pages. */
    listOwners() {
        const map = this.pool.store.maps.get(this.id);
        if (!this.pool.enlarged || !map) return;
        const page = this.pool.store.devices.get(this.id)?.page_bytes || 0;
        const held = new Map();
        for (const { code, n } of sums(map, page).values()) {
            if (ownerOf(code) >= 0) held.set(ownerOf(code), (held.get(ownerOf(code)) || 0) + n);
        }
        const most = [...held].sort(([a, n], [b, m]) => m - n || a - b).slice(0, OWNERS_MAX);
        most.sort(([a], [b]) => a - b); // they stay in their places while sizes change
        const items = this.owners.children;
        while (items.length < most.length) {
            this.owners.append(el("li", {}, el("i", { class: "swatch" }), el("bdi", {}),
                el("b", { class: "num" })));
        }
        while (items.length > most.length) items[items.length - 1].remove();
        most.forEach(([owner, n], i) => {
            const [swatch, name, size] = items[i].children;
            setStyle(swatch, "background-color", ownerColor(owner));
            setText(name, plain(this.pool.store.modelName(owner)));
            setText(size, bytes(n * page));
        });
    }

    columns() {
        const palette = this.pool.palette;
        return [
            { head: "Owner", cls: "name", sort: (r) => this.pool.ownerName(r.code),
                make: (td) => {
                    const swatch = el("i", { class: "swatch" });
                    const name = el("bdi", {});
                    td.append(swatch, name);
                    return (r) => {
                        setStyle(swatch, "background-color", palette.css(r.code));
                        setText(name, this.pool.ownerName(r.code));
                    };
                } },
            { head: "Use", cls: "use", text: (r) => USES[useOf(r.code)] || "?",
                sort: (r) => useOf(r.code) },
            { head: "Pages", cls: "num n", text: (r) => int(r.n), sort: (r) => r.n },
            { head: "Size", cls: "num size", text: (r) => bytes(r.bytes), sort: (r) => r.n },
            { head: "Runs", cls: "num n", text: (r) => int(r.runs), sort: (r) => r.runs,
                title: "Stretches of neighbouring pages" },
        ];
    }
}

/** Pages and runs of each code. */
function sums(map, page) {
    const out = new Map();
    let at = 0;
    while (at < map.n) {
        const code = map.codes[at];
        let end = at + 1;
        while (end < map.n && map.codes[end] === code) end++;
        const row = out.get(code) || { code, n: 0, bytes: 0, runs: 0 };
        row.n += end - at;
        row.bytes = row.n * page;
        row.runs++;
        out.set(code, row);
        at = end;
    }
    return out;
}

/** What is under the pointer or the cursor, with the pages around it enlarged. */
class Tip {
    constructor(pool) {
        this.pool = pool;
        this.where = null;
        this.page = el("b", { class: "num" });
        this.what = el("bdi", {});
        this.run = el("span", { class: "num" });
        this.loupe = el("canvas", { class: "loupe", "aria-hidden": true });
        this.context = this.loupe.getContext("2d");
        this.box = el("div", { class: "tip", hidden: true, "aria-hidden": true },
            this.loupe, el("div", {}, this.page, " ", this.what), this.run);
        this.said = byId("said");
        document.body.append(this.box);
    }

    at(where) {
        this.where = where;
        drawSoon(this);
        if (where?.how === "key") {
            const { page, what, run } = this.pool.describe(where.device, where.page);
            setText(this.said, `${page}, ${what}, ${run}`);
        }
    }

    refresh() {
        if (this.where) drawSoon(this);
    }

    draw() {
        const where = this.where;
        const device = where && this.pool.shown.get(where.device);
        const on = !!device && !!where.place && where.page < (device.map.map?.n ?? 0);
        show(this.box, on);
        if (!on) return false;
        const { page, what, run } = this.pool.describe(where.device, where.page);
        setText(this.page, page);
        setText(this.what, what);
        setText(this.run, run);
        this.enlarged(device.map, where.page);
        const r = where.place;
        const w = 226;
        const h = 118;
        const left = Math.max(4, Math.min(r.left - w / 2, innerWidth - w - 8));
        const top = r.top - h - 12 > 4 ? r.top - h - 12 : r.bottom + 12;
        setStyle(this.box, "left", left + "px");
        setStyle(this.box, "top", top + "px");
        return false;
    }

    enlarged(map, page) {
        const ratio = window.devicePixelRatio || 1;
        const cell = Math.round(LOUPE_CELL * ratio);
        const w = cell * LOUPE_COLS;
        const h = cell * LOUPE_ROWS;
        if (this.loupe.width !== w) this.loupe.width = w;
        if (this.loupe.height !== h) this.loupe.height = h;
        const c = this.context;
        c.clearRect(0, 0, w, h);
        const cellAt = Math.floor(page / map.per);
        const row = Math.floor(cellAt / map.cols);
        const col = cellAt % map.cols;
        const midX = (LOUPE_COLS - 1) / 2;
        const midY = (LOUPE_ROWS - 1) / 2;
        for (let y = 0; y < LOUPE_ROWS; y++) {
            for (let x = 0; x < LOUPE_COLS; x++) {
                const atCol = col + x - midX;
                const at = ((row + y - midY) * map.cols + atCol) * map.per;
                if (atCol < 0 || atCol >= map.cols || at < 0 || at >= map.map.n) continue;
                c.fillStyle = this.pool.palette.css(map.map.codes[at]);
                c.fillRect(x * cell, y * cell, cell - 1, cell - 1);
            }
        }
        c.strokeStyle = dark() ? "#ffffff" : "#000000";
        c.lineWidth = Math.max(1, ratio);
        c.strokeRect(midX * cell - 0.5, midY * cell - 0.5, cell, cell);
    }
}

// charts.js - ten minutes of figures, a row each second, as small charts over one axis of time.
//
// A chart is a canvas; its figures of now stand above it as text.  The pointer, or the arrow keys
// on a chart, move one line through all charts, and the figures are then those of that second.

import { el, setText, setAttr, setStyle, drawSoon, onSize, byId } from "./dom.js";
import { clock, millis, percent, short } from "./format.js";

const SPANS_S = [60, 120, 300, 600]; // the shortest that has room for all rows
const PER_FRAME = 2;
const GAP_S = 12; // a line goes on over seconds without a figure, up to so many

// Column of a row, name, custom property with the colour.
const CHARTS = [
    { name: "TTFT", what: "Time to first token", unit: millis,
        series: [[1, "P50", "--c1"], [2, "P95", "--c2"]] },
    { name: "ITL", what: "Time between tokens", unit: millis,
        series: [[3, "P50", "--c1"], [4, "P95", "--c2"]] },
    { name: "Tokens/s", what: "Tokens per second", unit: short,
        series: [[5, "in", "--c1"], [6, "out", "--c2"]] },
    { name: "Switches", what: "Preemptions, models brought up, refused requests", unit: short,
        bars: true,
        series: [[7, "preempt", "--c1"], [8, "load", "--c2"], [9, "refuse", "--c3"]] },
    { name: "Busy", what: "Part of device time in steps", unit: percent, top: 1,
        series: [[10, "steps", "--c1"]] },
];

export class Charts {
    constructor(store) {
        this.store = store;
        this.left = []; // to draw
        this.at = null; // the chosen second, or null: the newest
        this.charts = CHARTS.map((spec) => new Chart(spec, this));
        byId("charts").append(...this.charts.map((c) => c.root));
        this.when = byId("charts-when");
        for (const topic of ["reset", "history", "recolor"]) store.on(topic, () => this.redraw());
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    }

    /** All charts, in the next frames. */
    redraw() {
        const rows = this.store.rows;
        const style = getComputedStyle(document.documentElement);
        this.end = rows.length ? rows[rows.length - 1][0] : 0;
        const age = rows.length ? this.end - rows[0][0] : 0;
        this.span = SPANS_S.find((s) => s >= age) ?? SPANS_S[SPANS_S.length - 1];
        this.row = this.at === null ? rows[rows.length - 1] : nearest(rows, this.at);
        this.color = (name) => style.getPropertyValue(name);
        setText(this.when,
            this.at === null || !this.row ? `${this.span / 60} min` : clock(this.row[0] * 1000));
        this.left = [...this.charts];
        drawSoon(this);
    }

    /** Some in each frame: the browser copies a canvas that changed. */
    draw() {
        for (const chart of this.left.splice(0, PER_FRAME)) chart.draw();
        return this.left.length > 0;
    }

    choose(second) {
        this.at = second;
        this.redraw();
    }
}

function nearest(rows, second) {
    let best = rows[0];
    for (const row of rows) if (Math.abs(row[0] - second) < Math.abs(best[0] - second)) best = row;
    return best;
}

/** A round number at or above x, for the top of an axis. */
export function niceTop(x) {
    if (!(x > 0)) return 1;
    const size = 10 ** Math.floor(Math.log10(x));
    for (const step of [1, 1.5, 2, 3, 4, 5, 6, 8]) if (step * size >= x) return step * size;
    return 10 * size;
}

class Chart {
    constructor(spec, group) {
        this.spec = spec;
        this.group = group;
        this.values = spec.series.map(() => el("b", { class: "num" }));
        const keys = spec.series.map(([, name, color], i) => {
            const swatch = el("i", { class: "swatch line" });
            setStyle(swatch, "background-color", `var(${color})`);
            return el("li", {}, swatch, name, this.values[i]);
        });
        this.canvas = el("canvas", { tabindex: 0, role: "img" });
        this.context = this.canvas.getContext("2d");
        this.top = el("span", { class: "axis num" });
        this.plot = el("div", { class: "plot" }, this.canvas, this.top);
        this.root = el("div", { class: "chart" },
            el("div", { class: "chart-head" }, el("h3", { title: spec.what }, spec.name),
                el("ul", { class: "keys" }, ...keys)),
            this.plot);
        this.width = this.height = 0;
        onSize(this.plot, (w, h) => {
            this.width = w;
            this.height = h;
            group.redraw();
        });
        this.canvas.addEventListener("pointermove", (e) => this.onPointer(e));
        this.canvas.addEventListener("pointerleave", () => group.choose(null));
        this.canvas.addEventListener("blur", () => group.choose(null));
        this.canvas.addEventListener("keydown", (e) => this.onKey(e));
    }

    onPointer(e) {
        const box = this.canvas.getBoundingClientRect();
        const rows = this.group.store.rows;
        if (!rows.length) return;
        const end = rows[rows.length - 1][0];
        const back = this.group.span * (1 - (e.clientX - box.left) / box.width);
        this.group.choose(Math.round(end - back));
    }

    onKey(e) {
        const rows = this.group.store.rows;
        const steps = { ArrowLeft: -10, ArrowRight: 10, PageUp: -60, PageDown: 60 };
        const step = { ...steps, Home: -1e9, End: 1e9 }[e.key];
        if (!step || !rows.length || e.ctrlKey || e.altKey || e.metaKey) return;
        e.preventDefault();
        const last = rows[rows.length - 1][0];
        const at = Math.max(rows[0][0], Math.min(last, (this.group.at ?? last) + step));
        this.group.choose(at);
        const row = nearest(rows, at);
        setText(byId("said"), `${clock(row[0] * 1000)}, ${this.spec.name}: ${this.words(row)}`);
    }

    words(row) {
        return this.spec.series.map(([col, name]) =>
            `${name} ${this.spec.unit(row[col])}`).join(", ");
    }

    draw() {
        const { spec, values } = this;
        const { end, span, row, at, color } = this.group;
        const rows = this.group.store.rows;
        if (!color) return false;
        spec.series.forEach(([col], i) => setText(values[i], row ? spec.unit(row[col]) : "–"));
        const ratio = window.devicePixelRatio || 1;
        const w = Math.floor(this.width * ratio);
        const h = Math.floor(this.height * ratio);
        if (w < 2 || h < 2) return false;
        if (this.canvas.width !== w) this.canvas.width = w;
        if (this.canvas.height !== h) this.canvas.height = h;
        const c = this.context;
        c.clearRect(0, 0, w, h);
        let max = 0;
        for (const r of rows) for (const [col] of spec.series) if (r[col] > max) max = r[col];
        const top = spec.top ?? niceTop(max);
        setText(this.top, max ? spec.unit(top) : "");
        c.fillStyle = color("--grid");
        for (const part of [0.5, 1]) c.fillRect(0, Math.round(h - part * (h - ratio)), w, ratio);
        for (const part of [0.2, 0.4, 0.6, 0.8, 1]) {
            c.fillRect(Math.round(w * part) - ratio, 0, ratio, h);
        }
        const x = (second) => w * (1 - (end - second) / span);
        const y = (value) => h - ratio - (value / top) * (h - 3 * ratio);
        spec.series.forEach(([col, , property], i) => {
            c.fillStyle = c.strokeStyle = color(property);
            if (spec.bars) bars(c, rows, col, x, y, h, ratio, i);
            else line(c, rows, col, x, y, ratio);
        });
        if (at !== null && row) {
            c.fillStyle = color("--text");
            c.fillRect(Math.round(x(row[0])), 0, ratio, h);
        }
        if (document.activeElement !== this.canvas) {
            setAttr(this.canvas, "aria-label", `${spec.what}, the last ${span / 60} minutes` +
                (row ? ": " + this.words(row) : ""));
        }
        return false;
    }
}

function line(c, rows, col, x, y, ratio) {
    c.lineWidth = 1.25 * ratio;
    c.lineJoin = "round";
    c.beginPath();
    let before = -Infinity;
    for (const row of rows) {
        const value = row[col];
        if (value === null || value === undefined) continue;
        const px = x(row[0]);
        const py = y(value);
        if (row[0] - before > GAP_S) {
            c.moveTo(px, py);
            c.lineTo(px + ratio, py); // a figure without neighbours is a dot
        } else {
            c.lineTo(px, py);
        }
        before = row[0];
    }
    c.stroke();
}

function bars(c, rows, col, x, y, h, ratio, shift) {
    for (const row of rows) {
        if (!row[col]) continue;
        const top = y(row[col]);
        c.fillRect(Math.round(x(row[0]) + shift * ratio), top, Math.max(1, 1.5 * ratio), h - top);
    }
}

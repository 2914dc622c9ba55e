// pagemap.js - the pages of a device on one canvas.
//
// Pages lie in rows, the first one at the top left.  A cell has a whole number of device pixels, so
// the picture is sharp; up to hundreds of thousands of pages fit.  The picture is an array of
// pixels (ImageData): a changed run is written into it, and the changed rows alone go to the
// canvas.  That costs the same whatever the number of colours, and 72,000 changed pages take about
// a millisecond.  A frame that marks the page under the pointer or the keyboard's cursor is an
// element above the canvas.

import { el, onSize, drawSoon, setStyle } from "./dom.js";

const CELL_MAX = 22; // CSS pixels
const DIRTY_MAX = 20000; // ends of runs; with more everything is drawn
const GAP_FROM = 4; // device pixels of a cell from which it has a gap to the next

/**
 * How cells lie in `w` x `h` device pixels: the largest that give room to all pages.  Flat cells
 * may have a height that is no whole number; then some rows are a pixel higher than others.
 * @returns {{cw: number, ch: number, cols: number, per: number}} per: pages of one cell
 */
export function cellsFor(n, w, h, cellMax) {
    let best = { cw: 1, ch: 1, cols: Math.max(1, w), per: Math.max(1, Math.ceil(n / (w * h))) };
    let area = 0;
    for (let cw = 1; cw <= cellMax; cw++) {
        const cols = Math.floor(w / cw);
        if (cols < 1) break;
        const rows = Math.ceil(n / cols);
        let ch = Math.min(h / rows, cw * 2, cellMax);
        if (ch >= GAP_FROM) ch = Math.floor(ch);
        if (ch < 1 || ch * 2 < cw) continue;
        if (cw * ch > area) {
            area = cw * ch;
            best = { cw, ch, cols, per: 1 };
        }
    }
    return best;
}

export class PageMap {
    /**
     * @param {import("./colors.js").Palette} palette
     * @param {(page: number, how: "pointer"|"key"|"none", place: ?DOMRect) => void} pointed
     */
    constructor(palette, pointed) {
        this.palette = palette;
        this.pointed = pointed;
        this.map = null;
        this.dirty = []; // runs [first, end) of pages
        this.all = true;
        this.at = -1; // the marked page
        this.drawn = 0; // cells drawn so far, for tests
        this.canvas = el("canvas", { tabindex: 0, role: "application", class: "map" });
        this.context = this.canvas.getContext("2d");
        this.mark = el("div", { class: "mark", hidden: true });
        this.box = el("div", { class: "mapbox" }, this.canvas, this.mark);
        this.width = this.height = 0;
        onSize(this.box, (w, h) => {
            this.width = w;
            this.height = h;
            this.redraw();
        });
        this.canvas.addEventListener("pointermove", (e) => this.onPointer(e));
        this.canvas.addEventListener("pointerdown", (e) => this.onPointer(e));
        this.canvas.addEventListener("pointerleave", () => this.point(-1, "none"));
        this.canvas.addEventListener("keydown", (e) => this.onKey(e));
        this.canvas.addEventListener("focus", () => {
            if (this.canvas.matches(":focus-visible")) this.point(Math.max(0, this.at), "key");
        });
        this.canvas.addEventListener("blur", () => this.point(-1, "none"));
    }

    /** @param {import("./store.js").PageMap} map */
    set(map) {
        this.map = map;
        this.redraw();
    }

    redraw() {
        this.all = true;
        drawSoon(this);
    }

    /** Runs [first, n, code, ...] have changed. */
    changed(runs) {
        for (let i = 0; i + 2 < runs.length && !this.all; i += 3) {
            this.dirty.push(runs[i], runs[i] + runs[i + 1]);
        }
        if (this.dirty.length > DIRTY_MAX) { // a page in the background gets no frames
            this.all = true;
            this.dirty = [];
        }
        drawSoon(this);
    }

    draw() {
        if (!this.map || !this.box.isConnected) return false;
        if (this.ratio !== (window.devicePixelRatio || 1)) this.all = true; // zoom
        if (this.all) this.layOut();
        if (!this.image) return false;
        if (this.all) this.paint(0, this.map.n);
        let top = this.all ? 0 : Infinity;
        let bottom = this.all ? this.rows : 0;
        for (let i = 0; i < this.dirty.length; i += 2) {
            const end = Math.min(this.dirty[i + 1], this.map.n);
            if (this.dirty[i] >= end) continue;
            this.paint(this.dirty[i], end);
            top = Math.min(top, Math.floor(this.dirty[i] / this.per / this.cols));
            bottom = Math.max(bottom, Math.floor((end - 1) / this.per / this.cols) + 1);
        }
        if (bottom > top) {
            const y = this.top(top);
            this.context.putImageData(this.image, 0, 0, 0, y, this.image.width,
                this.top(bottom) - y);
        }
        this.dirty = [];
        this.all = false;
        if (this.at >= 0) this.place();
        return false;
    }

    layOut() {
        const ratio = window.devicePixelRatio || 1;
        const w = Math.floor(this.width * ratio);
        const h = Math.floor(this.height * ratio);
        this.image = null;
        if (w < 1 || h < 1) return;
        this.ratio = ratio;
        Object.assign(this, cellsFor(this.map.n, w, h, Math.round(CELL_MAX * ratio)));
        this.rows = Math.max(1, Math.ceil(Math.ceil(this.map.n / this.per) / this.cols));
        const width = this.cols * this.cw;
        const height = Math.min(this.top(this.rows), h);
        if (this.canvas.width !== width) this.canvas.width = width;
        if (this.canvas.height !== height) this.canvas.height = height;
        setStyle(this.canvas, "width", width / ratio + "px");
        setStyle(this.canvas, "height", height / ratio + "px");
        this.image = this.context.createImageData(width, height);
        this.pixels = new Uint32Array(this.image.data.buffer);
    }

    /** The first line of pixels of a row. */
    top(row) {
        return Math.floor(row * this.ch + 1e-9);
    }

    /** Pages [first, end) into the picture. */
    paint(first, end) {
        const { palette, pixels, cols, cw, ch, per } = this;
        const codes = this.map.codes;
        const width = this.image.width;
        const gapX = cw >= GAP_FROM ? 1 : 0;
        const gapY = ch >= GAP_FROM ? 1 : 0;
        const pattern = cw >= 2 && ch >= 2;
        const a = palette.a;
        const b = palette.b;
        const last = Math.floor((end - 1) / per);
        for (let cell = Math.floor(first / per); cell <= last; cell++) {
            const code = per === 1 ? codes[cell] : this.most(cell * per);
            if (a[code] === undefined) palette.make(code);
            const colorA = a[code];
            const colorB = pattern ? b[code] : colorA;
            const col = cell % cols;
            const y0 = this.top((cell - col) / cols);
            const y1 = this.top((cell - col) / cols + 1) - gapY;
            const x0 = col * cw;
            const x1 = x0 + cw - gapX;
            for (let y = y0; y < y1; y++) {
                const row = y * width;
                if (colorA === colorB) {
                    for (let x = x0; x < x1; x++) pixels[row + x] = colorA;
                } else {
                    for (let x = x0; x < x1; x++) pixels[row + x] = (x + y) & 2 ? colorB : colorA;
                }
            }
        }
        this.drawn += last - Math.floor(first / per) + 1;
    }

    /** The most frequent code of a cell that stands for several pages. */
    most(first) {
        const counts = new Map();
        let best = 0;
        let code = 0;
        const end = Math.min(first + this.per, this.map.n);
        for (let page = first; page < end; page++) {
            const count = (counts.get(this.map.codes[page]) || 0) + 1;
            counts.set(this.map.codes[page], count);
            if (count > best) {
                best = count;
                code = this.map.codes[page];
            }
        }
        return code;
    }

    /** The page at a place of the canvas, in CSS pixels; -1 outside. */
    hit(x, y) {
        if (!this.image) return -1;
        const col = Math.floor((x * this.ratio) / this.cw);
        const row = Math.ceil((Math.floor(y * this.ratio) + 1) / this.ch) - 1;
        if (col < 0 || row < 0 || col >= this.cols) return -1;
        const page = (row * this.cols + col) * this.per;
        return page < this.map.n ? page : -1;
    }

    /** Where a page is, in CSS pixels of the canvas. */
    rect(page) {
        const cell = Math.floor(page / this.per);
        const s = 1 / this.ratio;
        const x = (cell % this.cols) * this.cw * s;
        const row = Math.floor(cell / this.cols);
        const y = this.top(row);
        return new DOMRect(x, y * s, this.cw * s, (this.top(row + 1) - y) * s);
    }

    onPointer(e) {
        const box = this.canvas.getBoundingClientRect();
        this.point(this.hit(e.clientX - box.left, e.clientY - box.top), "pointer");
    }

    point(page, how) {
        this.at = page;
        this.place();
        const box = this.canvas.getBoundingClientRect();
        let place = null;
        if (page >= 0 && this.image) {
            const r = this.rect(page);
            place = new DOMRect(box.left + r.x, box.top + r.y, r.width, r.height);
        }
        this.pointed(page, how, place);
    }

    place() {
        const on = this.at >= 0 && !!this.image && this.at < this.map.n;
        if (this.mark.hidden === on) this.mark.hidden = !on;
        if (!on) return;
        const r = this.rect(this.at);
        const grow = Math.max(0, (9 - r.width) / 2);
        const growY = Math.max(0, (9 - r.height) / 2);
        setStyle(this.mark, "left", this.canvas.offsetLeft + r.x - grow + "px");
        setStyle(this.mark, "top", this.canvas.offsetTop + r.y - growY + "px");
        setStyle(this.mark, "width", r.width + 2 * grow + "px");
        setStyle(this.mark, "height", r.height + 2 * growY + "px");
    }

    /** The first page of the run, of one code, that `page` lies in, and the run's end. */
    run(page) {
        const codes = this.map.codes;
        let first = page;
        let end = page + 1;
        while (first > 0 && codes[first - 1] === codes[page]) first--;
        while (end < this.map.n && codes[end] === codes[page]) end++;
        return [first, end];
    }

    onKey(e) {
        if (!this.image || e.altKey || e.metaKey) return;
        if (e.ctrlKey && e.key !== "Home" && e.key !== "End") return;
        const at = Math.max(0, this.at);
        const line = this.cols * this.per;
        const row = Math.floor(at / line) * line;
        const to = {
            ArrowLeft: () => at - this.per, ArrowRight: () => at + this.per,
            ArrowUp: () => at - line, ArrowDown: () => at + line,
            Home: () => (e.ctrlKey ? 0 : row),
            End: () => (e.ctrlKey ? this.map.n - 1 : row + line - 1),
            PageUp: () => at - 10 * line, PageDown: () => at + 10 * line,
            n: () => this.run(at)[1], p: () => this.run(Math.max(0, this.run(at)[0] - 1))[0],
            Escape: () => -1,
        }[e.key];
        if (!to) return;
        e.preventDefault();
        const page = to();
        if (page < 0 && e.key === "Escape") this.point(-1, "none");
        else this.point(Math.max(0, Math.min(page, this.map.n - 1)), "key");
    }
}

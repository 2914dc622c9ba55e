// rows.js - a table with rows that have an id and change in place.
//
// A row's cells are made once.  When the row changes, each column compares its text with the one
// that is shown, so a row with one other number costs one text node.  A row out of sight is brought
// up to date when it comes into sight, and every few seconds, for readers that do not look.  Rows
// never move by themselves: the order changes when a row comes, or when a heading is pressed.

import { el, setAttr, setText, drawSoon } from "./dom.js";

const PER_FRAME = 8; // rows; their layout and paint belong to the same frame
const UNSEEN_MS = 5000;

/**
 * @typedef {Object} Column
 * @property {string} head      heading
 * @property {string} [title]   what it means
 * @property {string} cls       class of its cells: width and alignment are in page.css
 * @property {(row: Object) => string} [text]   what a cell shows
 * @property {(cell: HTMLElement, id: number) => (row: Object) => void} [make]  for a cell that has
 *           more than a text: fills it once, and returns what brings it up to date
 * @property {(row: Object) => (number|string)} [sort]
 */

export class Rows {
    /** @param {HTMLTableElement} table @param {Column[]} columns */
    constructor(table, columns, rowOf) {
        this.columns = columns;
        this.rowOf = rowOf;
        this.shown = new Map(); // id -> {tr, updates}
        this.dirty = new Set(); // to draw in the next frames
        this.stale = new Set(); // changed, out of sight
        this.seen = new Set(); // in sight
        this.sight =
            new IntersectionObserver((entries) => this.onSight(entries), { rootMargin: "60px" });
        setInterval(() => this.unseen(), UNSEEN_MS);
        this.order = null; // {column, down}
        this.filter = () => true;
        this.table = table;
        table.setAttribute("role", "table");
        this.heads = columns.map((c) => this.head(c));
        this.body = el("tbody", { role: "rowgroup" });
        table.append(el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...this.heads)),
            this.body);
    }

    head(column) {
        const th = el("th",
            { scope: "col", role: "columnheader", class: column.cls, title: column.title });
        if (!column.sort) {
            th.append(el("span", column.head ? {} : { class: "sr" }, column.head || "Actions"));
            return th;
        }
        const press = el("button", { type: "button", class: "sort" }, column.head);
        press.addEventListener("click", () => this.sortBy(column));
        th.append(press);
        return th;
    }

    /** Once by the column, then the other way round, then as the daemon lists them. */
    sortBy(column) {
        const first = /\bnum\b|entitled/.test(column.cls); // numbers from the largest on
        if (this.order?.column !== column) this.order = { column, down: first };
        else this.order = this.order.down === first ? { column, down: !first } : null;
        this.columns.forEach((c, i) => {
            const on = this.order?.column === c;
            const order = this.order?.down ? "descending" : "ascending";
            setAttr(this.heads[i], "aria-sort", on ? order : null);
        });
        this.arrange();
    }

    /** Rows came, changed or went. */
    changed(ids) {
        for (const id of ids) this.dirty.add(id);
        drawSoon(this);
    }

    /** Everything is new: rows that go on to exist keep their elements. */
    reset(ids) {
        const now = new Set(ids);
        for (const id of this.shown.keys()) this.dirty.add(id);
        this.changed(now);
    }

    onSight(entries) {
        for (const { target, isIntersecting } of entries) {
            const id = Number(target.dataset.id);
            if (!isIntersecting) {
                this.seen.delete(id);
                continue;
            }
            this.seen.add(id);
            if (this.stale.delete(id)) this.changed([id]);
        }
    }

    /** Rows out of sight, too. */
    unseen() {
        if (!this.stale.size) return;
        this.late = new Set(this.stale);
        this.stale.clear();
        this.changed(this.late);
    }

    draw(until) {
        let came = false;
        let n = 0;
        for (const id of this.dirty) {
            this.dirty.delete(id);
            const row = this.rowOf(id);
            const shown = this.shown.get(id);
            if (!row) {
                this.remove(id);
            } else if (shown && !this.seen.has(id) && !this.late?.delete(id)) {
                this.stale.add(id);
            } else {
                came = this.update(id, row) || came;
                if (++n >= PER_FRAME || performance.now() > until) break;
            }
        }
        if (came) this.arrange();
        return this.dirty.size > 0;
    }

    remove(id) {
        const shown = this.shown.get(id);
        if (!shown) return;
        this.sight.unobserve(shown.tr);
        shown.tr.remove();
        this.shown.delete(id);
        this.seen.delete(id);
        this.stale.delete(id);
    }

    /** True when the row is new. */
    update(id, row) {
        let shown = this.shown.get(id);
        const isNew = !shown;
        if (isNew) {
            shown = this.make(id);
            this.shown.set(id, shown);
            this.sight.observe(shown.tr);
        }
        for (const update of shown.updates) update(row);
        const hide = !this.filter(row);
        if (shown.tr.hidden !== hide) shown.tr.hidden = hide;
        return isNew;
    }

    make(id) {
        const tr = el("tr", { role: "row" });
        tr.dataset.id = id;
        const updates = this.columns.map((column) => {
            const td = el("td", { role: "cell", class: column.cls });
            td.dataset.head = column.head;
            tr.append(td);
            if (column.make) return column.make(td, id);
            return (row) => setText(td, column.text(row));
        });
        return { tr, updates };
    }

    /** All rows into their order; elements that are in place are not touched. */
    arrange() {
        const all = [...this.shown.entries()].filter(([id]) => this.rowOf(id));
        all.sort(([a], [b]) => a - b);
        if (this.order) {
            const { column, down } = this.order;
            const sign = down ? -1 : 1;
            const key = new Map(all.map(([id]) => [id, column.sort(this.rowOf(id))]));
            all.sort(([a], [b]) => {
                const x = key.get(a);
                const y = key.get(b);
                return x === y ? a - b : (x < y ? -1 : 1) * sign;
            });
        }
        let at = this.body.firstChild;
        for (const [, { tr }] of all) {
            if (tr === at) at = at.nextSibling;
            else this.body.insertBefore(tr, at);
        }
    }

    /** Which rows are shown. */
    show(filter) {
        this.filter = filter;
        for (const [id, { tr }] of this.shown) {
            const row = this.rowOf(id);
            tr.hidden = !row || !filter(row);
        }
    }

    /** After a second: texts that tell how long ago something was. */
    again() {
        this.changed(this.shown.keys());
    }
}

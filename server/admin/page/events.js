// events.js - what happened, in sentences, the newest first.
//
// Screen readers hear of failures and lost devices only, and of one in five seconds at most: a busy
// daemon has many events.

import { el, setText, setAttr, show, drawSoon, byId } from "./dom.js";
import { clock, int, plain } from "./format.js";

const SHOWN_MAX = 100;
const LOUD = new Set(["fail", "device"]);
const LOUD_MS = 5000;

const later = (a, b) => a.at > b.at || (a.at === b.at && a.id > b.id);

export class Events {
    constructor(store) {
        this.store = store;
        this.list = byId("events");
        this.shown = new Map(); // id -> {root, ...}
        this.fresh = [];
        this.spoken = 0;
        store.on("reset", () => {
            for (const { root } of this.shown.values()) root.remove();
            this.shown.clear();
            this.add(store.events);
        });
        store.on("events", (events) => {
            this.add(events);
            this.speak(events);
        });
    }

    add(events) {
        this.fresh = this.fresh.concat(events).slice(-SHOWN_MAX);
        drawSoon(this);
    }

    draw() {
        for (const event of this.fresh) this.put(event);
        this.fresh = [];
        while (this.shown.size > SHOWN_MAX) {
            const last = this.list.lastChild;
            this.shown.delete(Number(last.dataset.id));
            last.remove();
        }
        show(byId("no-events"), this.shown.size === 0);
        return false;
    }

    put(event) {
        let item = this.shown.get(event.id);
        if (!item) {
            item = this.make();
            this.shown.set(event.id, item);
        }
        item.at = event.at;
        item.id = event.id;
        this.place(item);
        setText(item.time, clock(event.at));
        setAttr(item.time, "datetime", new Date(event.at).toISOString());
        setText(item.kind, event.kind + ": ");
        setAttr(item.root, "data-kind", event.kind);
        setAttr(item.root, "title", event.kind + ": " + plain(event.text));
        setText(item.text, plain(event.text));
        setText(item.n, event.n > 1 ? "×" + int(event.n) : "");
    }

    /** The newest first; one that happened again moves up. */
    place(item) {
        const items = this.list.children;
        const of = (li) => this.shown.get(Number(li.dataset.id));
        const isBefore = (li) => li === item.root || later(of(li), item);
        let i = 0;
        while (i < items.length && isBefore(items[i])) i++;
        item.root.dataset.id = item.id;
        const next = items[i] ?? null;
        const isThere = item.root.parentNode && item.root.nextSibling === next;
        if (!isThere) this.list.insertBefore(item.root, next);
    }

    make() {
        const time = el("time", { class: "num" });
        const kind = el("span", { class: "sr" });
        const text = el("bdi", {});
        const n = el("b", { class: "num" });
        const mark = el("i", { class: "kind", "aria-hidden": true });
        const root = el("li", {}, time, mark, el("span", { class: "text" }, kind, text, " ", n));
        return { root, time, kind, text, n };
    }

    speak(events) {
        const loud = events.findLast((e) => LOUD.has(e.kind));
        if (!loud || Date.now() - this.spoken < LOUD_MS) return;
        this.spoken = Date.now();
        setText(byId("alerts"), plain(loud.text));
    }
}

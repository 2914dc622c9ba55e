// events.js - what happened, in sentences, the newest first.
//
// Screen readers hear of failures and lost devices only, and of one in five seconds at most: a busy
// daemon has many events.

import { el, setText, setAttr, show, drawSoon, byId } from "./dom.js";
import { clock, int, plain } from "./format.js";

const LOUD = new Set(["fail", "device"]);
const LOUD_MS = 5000;

/** The number of the change that made it: the clock may be set back. */
const later = (a, b) => a.change > b.change;

export class Events {
    constructor(store) {
        this.store = store;
        this.list = byId("events");
        this.shown = new Map(); // id -> {root, event, ...}
        this.spoken = 0;
        store.on("reset", () => {
            this.list.replaceChildren();
            this.shown.clear();
            drawSoon(this);
        });
        store.on("events", (events) => {
            drawSoon(this);
            this.speak(events);
        });
    }

    draw() {
        const kept = new Set(this.store.events.map((e) => e.id));
        for (const [id, { root }] of this.shown) {
            if (kept.has(id)) continue;
            root.remove();
            this.shown.delete(id);
        }
        for (const event of this.store.events) {
            if (this.shown.get(event.id)?.event !== event) this.put(event);
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
        item.event = event;
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
        const of = (li) => this.shown.get(Number(li.dataset.id)).event;
        const isBefore = (li) => li === item.root || later(of(li), item.event);
        let i = 0;
        while (i < items.length && isBefore(items[i])) i++;
        item.root.dataset.id = item.event.id;
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

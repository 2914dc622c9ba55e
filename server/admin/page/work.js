// work.js - the queue, the running step of each device, and where the devices' time goes.

import { el, setText, setAttr, setClass, setStyle, show, drawSoon, byId } from "./dom.js";
import { int, percent, plain, plural, seconds } from "./format.js";
import { ownerColor } from "./colors.js";

const PARTS = [
    ["requests", "requests"], ["load", "loading"], ["recompute", "recompute"], ["move", "swap"],
    ["host", "host"], ["idle", "idle"],
];
const SEQS_MAX = 32;

export class Work {
    constructor(store) {
        this.store = store;
        this.steps = new Map();
        this.times = new Map();
        store.on("reset", () => {
            for (const [map, alive] of [[this.steps, store.devices], [this.times, store.devices]]) {
                for (const [id, part] of map) {
                    if (alive.has(id)) continue;
                    part.root.remove();
                    map.delete(id);
                }
            }
            drawSoon(this);
        });
        store.on("queue", () => drawSoon(this));
        store.on("devices", () => drawSoon(this));
    }

    draw() {
        this.queue();
        for (const d of this.store.devices.values()) {
            if (!this.steps.has(d.id)) {
                this.steps.set(d.id, new Step(this.store));
                this.times.set(d.id, new Time());
                byId("steps").append(this.steps.get(d.id).root);
                byId("times").append(this.times.get(d.id).root);
            }
            setClass(byId("steps"), "many", this.steps.size > 1);
            setClass(byId("times"), "many", this.times.size > 1);
            this.steps.get(d.id).fill(d);
            this.times.get(d.id).fill(d);
        }
        return false;
    }

    queue() {
        const q = this.store.queue;
        setText(byId("q-running"), int(q.running));
        setText(byId("q-waiting"), int(q.waiting));
        setText(byId("q-paused"), int(q.paused));
        setText(byId("q-places"), `${int(q.places_used)} / ${int(q.places)}`);
        const part = q.places ? Math.min(1, q.places_used / q.places) : 0;
        setStyle(byId("q-fill"), "width", (part * 100).toFixed(1) + "%");
    }
}

/** Of a step, in tenths of a millisecond where that is much of it. */
const tookText = (us) => (us < 9950 ? (us / 1000).toFixed(1) + " ms" : seconds(us / 1e6));

/** The step that a device computes: model, rows, time, and its sequences. */
class Step {
    constructor(store) {
        this.store = store;
        this.device = el("span", { class: "device-name" });
        this.swatch = el("i", { class: "swatch" });
        this.model = el("bdi", { class: "model" });
        this.rows = el("span", { class: "num" });
        this.took = el("span", { class: "num took" });
        this.seqs = el("ul", { class: "seqs" });
        this.chips = [];
        this.root = el("div", { class: "step" },
            el("div", { class: "step-head" }, this.swatch, this.model, this.took),
            el("div", { class: "step-head" }, this.device, this.rows), this.seqs);
    }

    fill(d) {
        const step = d.step;
        setText(this.device, plain(d.name));
        show(this.swatch, !!step);
        setText(this.model,
            d.lost ? "lost" : step ? plain(this.store.modelName(step.model)) : "no step");
        if (step) setStyle(this.swatch, "background-color", ownerColor(step.model));
        setText(this.rows,
            step ? `${int(step.prefill)} prefill + ${int(step.decode)} decode rows` : "");
        setText(this.took, step ? tookText(step.us) : "");
        const seqs = step ? step.seqs.slice(0, SEQS_MAX) : [];
        while (this.chips.length < seqs.length) this.chips.push(this.chip());
        this.chips.forEach((chip, i) => {
            show(chip.root, i < seqs.length);
            if (i < seqs.length) this.sequence(chip, seqs[i]);
        });
    }

    chip() {
        const id = el("bdi", {});
        const rows = el("span", { class: "num" });
        const root = el("li", {}, id, rows);
        this.seqs.append(root);
        return { root, id, rows };
    }

    sequence(chip, [request, tenant, rows, prefill]) {
        const name = this.store.tenantName(tenant);
        setText(chip.id, plain(name || request || "–"));
        setText(chip.rows, prefill ? "+" + int(rows) : int(rows));
        setAttr(chip.root, "class", prefill ? "prefill" : "decode");
        setAttr(chip.root, "title",
            `request ${plain(request)}${name === null ? "" : ", tenant " + plain(name)}: ` +
            plural(rows, "row") + (prefill ? " of its prompt" : ", decode"));
    }
}

/** Time of a device as stacked bars: the last ten seconds, and since it was opened. */
class Time {
    constructor() {
        this.name = el("b", {});
        this.recent = ["requests", "load", "idle"].map((part) =>
            el("span", { class: "seg t-" + part }));
        this.segments = PARTS.map(([key]) => el("span", { class: "seg t-" + key }));
        this.recentBar = el("div", { class: "bar", role: "img" }, ...this.recent);
        this.wholeBar = el("div", { class: "bar", role: "img" }, ...this.segments);
        this.wall = el("span", { class: "num" });
        this.values = PARTS.map(() => el("b", { class: "num" }));
        this.keys = PARTS.map(([key, name], i) =>
            el("li", {}, el("i", { class: "swatch t-" + key }), name, this.values[i]));
        this.root = el("div", { class: "time" },
            el("div", { class: "time-row" }, this.name, el("span", { class: "span" }, "10 s"),
                this.recentBar),
            el("div", { class: "time-row" }, this.wall, el("span", { class: "span" }, "all"),
                this.wholeBar),
            el("ul", { class: "keys" }, ...this.keys));
    }

    fill(d) {
        setText(this.name, plain(d.name));
        const recent = [d.recent.step, d.recent.load, d.recent.idle];
        recent.forEach((part, i) => setStyle(this.recent[i], "flex-grow", String(part)));
        this.recentBar.setAttribute("aria-label",
            `The last ten seconds of ${plain(d.name)}: steps ` +
            `${percent(recent[0])}, loading ${percent(recent[1])}, idle ${percent(recent[2])}`);
        const all = PARTS.reduce((n, [key]) => n + (d.account[key] || 0), 0) || 1;
        const words = PARTS.map(([key, name], i) => {
            const part = (d.account[key] || 0) / all;
            setStyle(this.segments[i], "flex-grow", String(part));
            setText(this.values[i], percent(part));
            this.keys[i].title = `${name}: ${seconds(d.account[key] || 0)}`;
            return `${name} ${percent(part)}`;
        });
        setText(this.wall, seconds(all));
        setAttr(this.wholeBar, "aria-label",
            `${plain(d.name)} since it was opened: ${words.join(", ")}`);
    }
}

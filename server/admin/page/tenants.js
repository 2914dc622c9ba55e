// tenants.js - the table of tenants: what each used, of what it is entitled to.

import { el, setText, setAttr, setStyle, setClass, show, byId } from "./dom.js";
import { bytes, int, ofPercent, plain, short } from "./format.js";
import { Rows } from "./rows.js";

export class Tenants {
    constructor(store) {
        this.store = store;
        this.rows = new Rows(byId("tenants"), columns(), (id) => store.tenants.get(id));
        store.on("reset", () => {
            this.rows.reset(store.tenants.keys());
            this.summary();
        });
        store.on("tenants", (ids) => {
            this.rows.changed(ids);
            this.summary();
        });
        store.on("daemon", () => this.summary());
        const field = byId("tenants-filter");
        field.addEventListener("input", () => {
            const text = field.value.trim().toLowerCase();
            this.rows.show((t) => !text || t.name.toLowerCase().includes(text));
        });
    }

    summary() {
        let tokens = 0;
        for (const t of this.store.tenants.values()) tokens += t.today;
        const n = this.store.tenants.size;
        const all = this.store.tenantsAll();
        const count = int(n) + (all > n ? " of " + int(all) : "");
        setText(byId("tenants-sum"), n ? `${count} · ${short(tokens)} tokens today` : "");
        show(byId("no-tenants"), n === 0);
    }
}

function columns() {
    return [
        { head: "Tenant", cls: "name", sort: (t) => t.name, make: (td) => {
            const name = el("bdi", {});
            td.append(name);
            return (t) => {
                setText(name, plain(t.name));
                setAttr(td, "title", plain(t.name));
            };
        } },
        { head: "Class", cls: "class", text: (t) => t.class,
            title: "The highest class of its requests" },
        { head: "Used / entitled", cls: "entitled", sort: (t) => t.used, make: entitledCell,
            title: "Part of the time of one device, the last ten seconds; its guaranteed part" },
        { head: "Tokens today", cls: "num today", sort: (t) => t.today,
            title: "Of its limit for a day, where it has one",
            text: (t) => short(t.today) +
                (t.limit_today === null ? "" : " / " + short(t.limit_today)) },
        { head: "Run/wait", cls: "num work", text: (t) => `${int(t.running)} / ${int(t.waiting)}`,
            sort: (t) => t.running + t.waiting, title: "Sequences that run and that wait" },
        { head: "Refused", cls: "num refused", text: (t) => short(t.refused),
            sort: (t) => t.refused,
            title: "Requests that were answered 429 or 503 since the start" },
        { head: "Tok/s in, out", cls: "num rate2", text: (t) => `${short(t.in)} / ${short(t.out)}`,
            sort: (t) => t.in + t.out, title: "Tokens per second of prompts and of answers" },
        { head: "KV", cls: "num mem", text: (t) => bytes(t.kv), sort: (t) => t.kv,
            title: "Keys and values of its sequences" },
    ];
}

/** A bar of the used part, with a tick where the entitled part ends. */
function entitledCell(td) {
    const fill = el("i", { class: "fill" });
    const tick = el("i", { class: "tick" });
    const text = el("span", { class: "num" });
    td.append(el("span", { class: "meter", "aria-hidden": true }, fill, tick), text);
    return (t) => {
        const entitled = t.entitled;
        const top = Math.max(1, t.used, entitled ?? 0);
        const width = (part) => ((part / top) * 100).toFixed(1) + "%";
        setStyle(fill, "width", width(t.used));
        show(tick, entitled !== null);
        if (entitled !== null) setStyle(tick, "left", width(entitled));
        setClass(td, "over", entitled !== null && t.used > entitled * 1.02);
        setText(text, ofPercent(t.used, entitled));
    };
}

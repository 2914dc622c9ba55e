// models.js - the table of models: state, class, share, memory, work and commands.

import { el, setText, setAttr, setClass, setStyle, show, button, byId } from "./dom.js";
import { ago, bytes, int, millis, ofPercent, percent, plain, short } from "./format.js";
import { ownerColor } from "./colors.js";
import { Rows } from "./rows.js";

const CLASSES = ["system", "high", "normal", "batch"];
const STATES = ["hot", "loading", "staging", "draining", "warm", "cold", "failed", "none"];
const UP = new Set(["hot", "loading", "draining"]); // with weights on a device, or about to be

/** Pages of a model in device memory, in bytes. */
const held = (m) => m.bytes.weight + m.bytes.kv + m.bytes.cached;

export class Models {
    /**
     * @param {import("./store.js").Store} store
     * @param {import("./commands.js").Commands} commands
     * @param {import("./pool.js").Pool} pool
     */
    constructor(store, commands, pool) {
        this.store = store;
        this.commands = commands;
        this.pool = pool;
        this.rows = new Rows(byId("models"), this.columns(), (id) => store.models.get(id));
        this.details = new Details(store, commands);
        store.on("reset", () => this.reset());
        store.on("models", (ids) => {
            this.rows.changed(ids);
            this.summary();
            this.details.changed(ids);
        });
        setInterval(() => this.rows.again(), 1000);
        this.search();
        this.highlight();
    }

    reset() {
        this.rows.reset(this.store.models.keys());
        this.summary();
        this.details.again();
        show(byId("no-models"), this.store.models.size === 0);
    }

    summary() {
        const counts = {};
        for (const m of this.store.models.values()) counts[m.state] = (counts[m.state] || 0) + 1;
        const words = STATES.filter((s) => counts[s]).map((s) => `${counts[s]} ${s}`);
        setText(byId("models-sum"), words.join(" · "));
        show(byId("no-models"), this.store.models.size === 0);
    }

    search() {
        const field = byId("models-filter");
        field.addEventListener("input", () => {
            const text = field.value.trim().toLowerCase();
            const has = (name) => name.toLowerCase().includes(text);
            this.rows.show((m) => has(m.name) || m.state === text || m.aliases.some(has));
        });
    }

    /** The pages of the model under the pointer, or with the focus, stand out in the pool. */
    highlight() {
        const body = this.rows.body;
        let on = -1;
        const set = (e) => {
            const tr = e.target.closest?.("tr");
            const id = tr && body.contains(tr) ? Number(tr.dataset.id) : -1;
            if (id !== on) this.pool.highlight(on = id);
        };
        const off = () => {
            if (on >= 0) this.pool.highlight(on = -1);
        };
        body.addEventListener("pointerover", set);
        body.addEventListener("pointerleave", off);
        body.addEventListener("focusin", (e) => e.target.matches(":focus-visible") && set(e));
        body.addEventListener("focusout", off);
    }

    columns() {
        return [
            { head: "Model", cls: "name", sort: (m) => m.name,
                make: (td, id) => this.nameCell(td, id) },
            { head: "State", cls: "state", sort: (m) => STATES.indexOf(m.state), make: stateCell },
            { head: "Class", cls: "class", text: (m) => m.class,
                sort: (m) => CLASSES.indexOf(m.class),
                title: "Priority class" },
            { head: "Used / share", cls: "num share", sort: (m) => m.used,
                text: (m) => ofPercent(m.used, m.share ? m.share.percent / 100 : null),
                title: "Part of the time of one device in the last ten seconds; its share" },
            { head: "Memory", cls: "num mem", text: (m) => bytes(held(m)), sort: held,
                title: "Weights, keys and values, and cache on devices" },
            { head: "Run/wait", cls: "num work",
                text: (m) => `${int(m.running)} / ${int(m.waiting)}`,
                sort: (m) => m.running + m.waiting, title: "Sequences that run and that wait" },
            { head: "Tok/s", cls: "num rate", text: (m) => short(m.out), sort: (m) => m.out,
                title: "Tokens of answers per second" },
            { head: "Last", cls: "num last", text: (m) => this.lastUse(m),
                sort: (m) => m.wanted_at ?? Infinity, title: "Time since the last use" },
            { head: "", cls: "acts", make: (td, id) => this.actions(td, id) },
        ];
    }

    lastUse(m) {
        if (m.running || m.waiting) return "now";
        if (m.wanted_at === null) return m.state === "none" ? "never" : "now";
        return m.wanted_at ? ago(this.store.now() - m.wanted_at) : "never";
    }

    nameCell(td, id) {
        const swatch = el("i", { class: "swatch" });
        const name = el("bdi", {});
        const open = el("button", { type: "button", class: "open" }, name);
        open.addEventListener("click", () => this.details.open(id));
        const badge = el("span", { class: "badge" });
        td.append(el("div", { class: "name-box" }, swatch, open, badge));
        setStyle(swatch, "background-color", ownerColor(id));
        return (m) => {
            setText(name, plain(m.name));
            setAttr(open, "title", plain(m.name) + (m.error ? ": " + plain(m.error) : ""));
            const pin = { hot: "pin", warm: "pin warm" }[m.pin] ?? "";
            setText(badge, m.held ? "held" : pin);
        };
    }

    actions(td, id) {
        const model = () => this.store.models.get(id);
        const act = (what) => (e) => this.commands.act(model(), what, e.currentTarget);
        const load = button("Load", { class: "small" }, (e) =>
            act(UP.has(model().state) && !model().held ? "unload" : "load")(e));
        const pin = button("Pin", { class: "small" }, (e) =>
            act(model().pin === "none" ? "pin" : "unpin")(e));
        const drain = button("Drain", { class: "small" }, (e) =>
            act(model().held ? "undrain" : "drain")(e));
        td.append(load, pin, drain);
        return (m) => {
            const name = plain(m.name);
            for (const b of [load, pin, drain]) show(b, !m.leaving);
            label(load, UP.has(m.state) && !m.held ? "Unload" : "Load", name);
            label(pin, m.pin === "none" ? "Pin" : "Unpin", name);
            label(drain, m.held ? "Undrain" : "Drain", name);
        };
    }
}

function label(press, text, name) {
    if (press.firstChild.data !== text) press.firstChild.data = text;
    setAttr(press, "aria-label", text + " " + name);
}

function stateCell(td) {
    const text = el("span", {});
    const pill = el("span", { class: "pill" }, text);
    td.append(pill);
    return (m) => {
        const busy = m.progress !== null && m.progress !== undefined;
        setText(text, m.state);
        setAttr(pill, "data-state", m.state);
        setStyle(pill, "--progress", busy ? m.progress * 100 + "%" : "0%");
        setAttr(pill, "title",
            busy ? `${m.state}: ${percent(m.progress)}` : m.error ? plain(m.error) : null);
    };
}

/** All about one model, with the commands that are rarely needed. */
class Details {
    constructor(store, commands) {
        this.store = store;
        this.id = -1;
        this.dialog = byId("details");
        this.title = byId("details-title");
        this.error = byId("details-error");
        this.list = byId("details-list");
        this.values = new Map();
        const act = (what) => (e) => commands.act(store.models.get(this.id), what, e.currentTarget);
        this.buttons = {
            load: button("Load", {}, act("load")), unload: button("Unload", {}, act("unload")),
            drop: button("Drop", { title: "Off the device and out of host memory" }, act("drop")),
            prefetch: button("Prefetch", { title: "Into host memory" }, act("prefetch")),
            pin: button("Pin on device", {}, act("pin")),
            warm: button("Pin in host memory", {}, act("pin warm")),
            unpin: button("Unpin", {}, act("unpin")), drain: button("Drain", {}, act("drain")),
            undrain: button("End drain", {}, act("undrain")),
        };
        this.chat = button("Chat", { class: "main" }, () => {
            this.dialog.close();
            location.hash = "#chat=" + encodeURIComponent(this.name);
        });
        byId("details-acts").append(...Object.values(this.buttons), this.chat);
    }

    open(id) {
        this.id = id;
        this.name = this.store.models.get(id)?.name;
        if (this.fill()) this.dialog.showModal();
    }

    changed(ids) {
        if ([...ids].includes(this.id)) this.again();
    }

    again() {
        if (this.dialog.open && !this.fill()) this.dialog.close();
    }

    set(name, value) {
        if (!this.values.has(name)) {
            const dd = el("dd", {});
            this.list.append(el("div", {}, el("dt", {}, name), dd));
            this.values.set(name, dd);
        }
        setText(this.values.get(name), value);
    }

    /** False: the model left; in another process its id may be that of another one. */
    fill() {
        const m = this.store.models.get(this.id);
        if (!m || m.name !== this.name) return false;
        setText(this.title, plain(m.name));
        show(this.error, !!m.error);
        setText(this.error, plain(m.error ?? ""));
        this.set("State", m.state + (m.held ? ", drained by hand" : ""));
        this.set("Class, weight", `${m.class}, ${m.weight}`);
        this.set("Share", m.share ? `${m.share.percent} %, ${m.share.policy}` : "none");
        this.set("Pin", m.pin);
        this.set("Devices",
            m.devices.map((d) => plain(this.store.devices.get(d)?.name ?? d)).join(", ") || "none");
        this.set("Context", int(m.context) + " tokens");
        this.set("Weights", bytes(m.bytes.weight) + ` (file ${bytes(m.bytes.file)})`);
        this.set("KV", bytes(m.bytes.kv));
        this.set("Cached KV", bytes(m.bytes.cached));
        this.set("Host memory", `${bytes(m.bytes.warm)} weights, ${bytes(m.bytes.parked)} KV`);
        this.set("Memory min, max",
            `${bytes(m.bytes.min)}, ${!m.bytes.max ? "none" : bytes(m.bytes.max)}`);
        this.set("Running, waiting", `${int(m.running)}, ${int(m.waiting)}`);
        this.set("Tokens/s", `${short(m.in)} in, ${short(m.out)} out`);
        this.set("Device time", percent(m.used));
        this.set("Loads, evictions", `${int(m.loads)}, ${int(m.evictions)}`);
        this.set("Last switch", millis(m.last_switch_ms));
        this.set("Aliases", m.aliases.map(plain).join(", ") || "none");
        const b = this.buttons;
        show(b.load, m.state !== "hot");
        show(b.unload, UP.has(m.state));
        show(b.prefetch, m.state === "cold" || m.state === "none");
        show(b.pin, m.pin !== "hot");
        show(b.warm, m.pin !== "warm");
        show(b.unpin, m.pin !== "none");
        show(b.drain, !m.held);
        show(b.undrain, m.held);
        if (m.leaving) for (const x of Object.values(b)) show(x, false);
        show(this.chat, !m.leaving);
        setClass(this.dialog, "failed", m.state === "failed");
        return true;
    }
}

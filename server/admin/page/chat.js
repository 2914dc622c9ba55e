// chat.js - conversations with up to four models, side by side on one prompt.
//
// Each column has a conversation of its own; the prompt and the settings are of all.  An answer is
// stopped by the end of its connection: the daemon frees what it held at once.

import { el, setText, setAttr, setClass, setStyle, show, button, byId, drawSoon } from "./dom.js";
import { int, list, millis, plain } from "./format.js";
import { keys } from "./net.js";
import { BadSetting, complete, modelNames, settings } from "./completion.js";
import { Answer } from "./answer.js";

const COLUMNS_MAX = 4;

export class Chat {
    constructor(store) {
        this.store = store;
        this.names = [];
        this.choices = new Map(); // name -> {box, state}
        this.columns = new Map(); // name -> Column
        this.loaded = false;
        this.served = ""; // servedNow at the newest load
        this.prompt = byId("prompt");
        byId("settings").addEventListener("submit", (e) => e.preventDefault());
        byId("composer").addEventListener("submit", (e) => {
            e.preventDefault();
            if (this.busy()) this.stop();
            else this.send();
        });
        this.prompt.addEventListener("keydown", (e) => {
            if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
                e.preventDefault();
                if (!this.busy()) this.send();
            }
        });
        byId("chat").addEventListener("keydown", (e) => e.key === "Escape" && this.stop());
        const fold = byId("chat-fold");
        fold.addEventListener("click", () => {
            const folded = byId("settings").classList.toggle("folded");
            fold.setAttribute("aria-expanded", String(!folded));
        });
        byId("chat-new").addEventListener("click", () => this.fresh());
        byId("tenant-key-set").addEventListener("click", () => this.setKey());
        byId("tenant-key").addEventListener("keydown", (e) => e.key === "Enter" && this.setKey());
        store.on("models", () => {
            if (this.served !== this.servedNow()) this.again();
            else if (this.isOpen()) drawSoon(this);
        });
        store.on("reset", () => this.again());
    }

    /** The list of models may be another one. */
    again() {
        this.loaded = false;
        if (this.isOpen()) this.load();
    }

    models() {
        return [...this.store.models.values()].filter((m) => !m.leaving);
    }

    /** Names and aliases that the daemon serves, as one text. */
    servedNow() {
        return JSON.stringify(this.models().map((m) => [m.name, m.aliases]));
    }

    isOpen() {
        return !byId("chat").hidden;
    }

    /** The view is shown; `wanted` are names from the address, separated by commas. */
    open(wanted) {
        this.wanted = wanted ? wanted.split(",").map(decode).filter(Boolean) : this.wanted;
        const known = !this.wanted || this.wanted.every((n) => this.names.includes(n));
        if (this.loaded && known) this.choose();
        else this.load();
    }

    linked(state) {
        if (state === "live" && this.isOpen() && !this.loaded) this.load();
    }

    setKey() {
        keys.set("tenant_key", byId("tenant-key").value.trim());
        byId("tenant-key").value = "";
        this.load();
    }

    async load() {
        const load = this.newest = {};
        this.served = this.servedNow();
        try {
            const names = await modelNames();
            if (this.newest !== load) return;
            this.names = names;
            this.loaded = true;
            show(byId("chat-problem"), false);
            show(byId("tenant-key-label"), !!keys.get("tenant_key"));
        } catch (e) {
            if (this.newest !== load) return;
            this.loaded = false;
            show(byId("tenant-key-label"), e.status === 401 || e.status === 403);
            setText(byId("chat-problem"),
                e.status ? plain(e.message) : "The daemon does not answer.");
            show(byId("chat-problem"), true);
            return;
        }
        this.list();
        this.choose();
    }

    /**
     * The names to choose from, with the states of their models; columns of other names close,
     * except while an answer comes: a model that leaves ends it.
     */
    list() {
        for (const [name, { abort }] of this.columns) {
            if (!this.names.includes(name) && !abort) this.close(name);
        }
        for (const [name, choice] of this.choices) {
            if (this.names.includes(name) || this.columns.has(name)) continue;
            choice.root.remove();
            this.choices.delete(name);
        }
        for (const name of this.names) {
            if (this.choices.has(name)) continue;
            const box = el("input", { type: "checkbox" });
            const state = el("span", { class: "pill" });
            const root = el("label", { class: "check" }, box,
                el("bdi", { title: plain(name) }, plain(name)), state);
            box.addEventListener("change", () => this.toggled(name, box));
            this.choices.set(name, { root, box, state });
            byId("chat-names").append(root);
        }
        drawSoon(this);
    }

    draw() {
        const states = new Map(this.models().map((m) => [m.name, m.state]));
        for (const [name, choice] of this.choices) {
            setText(choice.state, states.get(name) ?? "");
            setAttr(choice.state, "data-state", states.get(name) ?? null);
        }
        for (const column of this.columns.values()) column.status();
        setText(byId("send"), this.busy() ? "Stop" : "Send");
        return false;
    }

    /**
     * Columns for the names that the address asked for.  A first model is chosen without being
     * asked for only at the beginning: a prompt is for the model that it was written for.
     */
    choose() {
        const wanted = this.wanted || [];
        const known = wanted.filter((n) => this.names.includes(n)).slice(0, COLUMNS_MAX);
        if (wanted.length) {
            for (const name of this.columns.keys()) if (!known.includes(name)) this.close(name);
            for (const name of known) this.column(name);
            const unknown = wanted.filter((n) => !this.names.includes(n));
            setText(byId("chat-problem"), `There is no model ${plain(list(unknown))}.`);
            show(byId("chat-problem"), unknown.length > 0);
        } else if (!this.began && this.names.length) {
            const hot = this.models().find((m) =>
                m.state === "hot" && this.names.includes(m.name));
            this.column(hot?.name ?? this.names[0]);
        }
        this.began ||= this.columns.size + wanted.length > 0;
        this.wanted = null;
        this.chosen();
    }

    toggled(name, box) {
        if (box.checked && this.columns.size < COLUMNS_MAX) this.column(name);
        else if (!box.checked) this.close(name);
        this.chosen();
    }

    column(name) {
        if (this.columns.has(name)) return;
        const column = new Column(name, () => drawSoon(this));
        this.columns.set(name, column);
        byId("columns").append(column.root);
    }

    close(name) {
        this.columns.get(name)?.stop();
        this.columns.get(name)?.root.remove();
        this.columns.delete(name);
    }

    /** After a change of the columns. */
    chosen() {
        const full = this.columns.size >= COLUMNS_MAX;
        for (const [name, { box }] of this.choices) {
            box.checked = this.columns.has(name);
            box.disabled = full && !box.checked;
        }
        show(byId("no-columns"), this.columns.size === 0);
        setStyle(byId("columns"), "--columns", String(Math.max(1, this.columns.size)));
        const names = [...this.columns.keys()].map(encodeURIComponent).join(",");
        if (this.isOpen()) history.replaceState(null, "", "#chat" + (names ? "=" + names : ""));
        drawSoon(this);
    }

    busy() {
        return [...this.columns.values()].some((c) => c.abort);
    }

    stop() {
        for (const column of this.columns.values()) column.stop();
    }

    fresh() {
        this.stop();
        for (const column of this.columns.values()) column.clear();
        this.prompt.focus();
    }

    send() {
        const text = this.prompt.value;
        const any = text.trim() || [...this.columns.values()].some((c) => c.hasResults());
        if (!any || !this.columns.size) return;
        let body;
        try {
            body = settings();
            show(byId("s-error"), false);
        } catch (e) {
            if (!(e instanceof BadSetting)) throw e;
            setText(byId("s-error"), e.message);
            show(byId("s-error"), true);
            return;
        }
        const options = { system: byId("s-system").value, formatted: byId("s-formatted").checked };
        for (const column of this.columns.values()) {
            if (text.trim() || column.hasResults()) column.ask(text, body, options);
        }
        this.prompt.value = "";
        drawSoon(this);
    }
}

function decode(text) {
    try {
        return decodeURIComponent(text);
    } catch {
        return text;
    }
}

/** The conversation with one model. */
class Column {
    constructor(name, changed) {
        this.name = name;
        this.changed = changed;
        this.messages = [];
        this.answer = null;
        this.abort = null;
        this.stats = el("span", { class: "stats num" });
        this.stopper = button("Stop", { class: "small", hidden: true,
            "aria-label": "Stop " + plain(name) }, () => this.stop());
        this.log = el("div", { class: "log", tabindex: 0, role: "log", "aria-live": "off",
            "aria-label": "Conversation with " + plain(name) });
        this.root = el("section", { class: "panel column" },
            el("div", { class: "panel-head" },
                el("h2", {}, el("bdi", { title: plain(name) }, plain(name))), this.stopper),
            this.stats, this.log);
        this.status();
    }

    clear() {
        this.messages = [];
        this.answer = null;
        this.figures = null;
        this.log.replaceChildren();
        this.status();
    }

    hasResults() {
        return !!this.answer && this.answer.results().length > 0;
    }

    /** Before a change of the log; the result keeps the end in sight where it was. */
    follow() {
        const log = this.log;
        const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        return () => {
            if (atEnd) log.scrollTop = log.scrollHeight;
        };
    }

    async ask(text, settings, options) {
        const before = this.messages.length;
        const earlier = this.answer;
        if (this.answer) this.messages.push(...this.answer.results());
        if (text.trim()) {
            this.messages.push({ role: "user", content: text });
            this.log.append(el("article", { class: "message user" },
                el("div", { class: "text", dir: "auto" }, text)));
        }
        const system = options.system.trim() ? [{ role: "system", content: options.system }] : [];
        const body = { model: this.name, messages: [...system, ...this.messages], ...settings };
        const answer = new Answer(options.formatted, () => this.follow());
        this.answer = answer;
        this.log.append(answer.root);
        this.log.scrollTop = this.log.scrollHeight;
        const abort = new AbortController();
        this.abort = abort;
        this.figures =
            { began: performance.now(), first: 0, last: 0, n: 0, usage: null, finish: "" };
        this.status();
        await this.read(body, answer, abort, this.figures);
        if (this.abort === abort) this.abort = null;
        // A message that failed leaves the conversation; results of calls can be sent again.
        if (this.answer === answer && answer.isEmpty()) {
            this.messages.length = before;
            this.answer = earlier;
        } else if (this.answer === answer) {
            this.messages.push(answer.message());
        }
        this.changed();
    }

    async read(body, answer, abort, f) {
        try {
            const { finish, usage } = await complete(body, abort.signal, (delta, logprobs) => {
                f.last = performance.now();
                const n = logprobs?.length ||
                    (delta.content || delta.reasoning_content || delta.tool_calls ? 1 : 0);
                if (n && !f.first) f.first = f.last;
                f.n += n;
                answer.push(delta, logprobs);
                this.changed();
            });
            f.finish = finish;
            f.usage = usage;
            answer.end("");
        } catch (e) {
            f.finish = abort.signal.aborted ? "stopped" : "failed";
            const why = e instanceof TypeError ? "the daemon does not answer" : e.message;
            answer.end(abort.signal.aborted ? "" : why);
        }
    }

    stop() {
        this.abort?.abort();
    }

    status() {
        show(this.stopper, !!this.abort);
        setClass(this.root, "busy", !!this.abort);
        setText(this.stats,
            this.figures ? figuresText(this.figures, !!this.abort) : "No message yet.");
    }
}

/** "412 tokens/s · TTFT 31 ms · 40 tokens · prompt 52, 48 of them cached · stop" */
function figuresText(f, busy) {
    if (!f.first) return busy ? "waiting for the first token" : f.finish;
    const n = f.usage?.completion_tokens ?? f.n;
    const s = (f.last - f.first) / 1000;
    const words = [`${n > 1 && s > 0.01 ? ((n - 1) / s).toFixed(1) : "–"} tokens/s`,
        `TTFT ${millis(f.first - f.began)}`, `${int(n)} tokens`];
    if (f.usage) {
        const cached = f.usage.prompt_tokens_details?.cached_tokens;
        words.push(`prompt ${int(f.usage.prompt_tokens)}` +
            (cached ? `, ${int(cached)} cached` : ""));
    }
    if (f.finish) words.push(f.finish);
    return words.join(" · ");
}

// commands.js - commands for models: a plan or a question first, then the command, and its error
// beside the button.

import { el, setAttr, setText, setStyle, show, button, byId } from "./dom.js";
import { bytes, list, plain, plural, seconds } from "./format.js";
import { command, modelPath } from "./net.js";

const NOTE_MS = 8000;

/** The sentences of a plan: what would happen, in the order in which a person asks. */
export function planSentences(plan, name) {
    const said = [];
    const size = plan.weights?.bytes ? bytes(plan.weights.bytes) : "";
    const used = (plan.devices || []).filter((d) => d.used).map((d) => plain(d.name));
    const several = used.length > 1;
    const where = several ? " on " + list(used) : plan.device ? " on " + plain(plan.device) : "";
    if (plan.problems?.length || !plan.fits) {
        said.push(`${name} does not fit${where}.`);
        for (const p of plan.problems || []) {
            said.push(plain(typeof p === "string" ? p : p.message ?? p.text));
        }
        for (const c of plan.checks || []) if (c.kept === false) said.push(plain(c.text) + ".");
        const { wanted, fit } = plan.parts || {};
        if (fit < wanted) said.push(`Devices have room for ${fit} of its ${wanted} parts.`);
        return said;
    }
    if (plan.bring_up?.from === "device") return [`${name} is${where}; nothing is loaded.`];
    const took = isFinite(plan.bring_up?.s) && !plan.turns ?
        `, in about ${seconds(plan.bring_up.s)}` : "";
    const from = { file: " from its file", host: " from host memory" }[plan.bring_up?.from] ?? "";
    const each = size ? ` (${size}${several ? " each" : ""})` : "";
    said.push(`${name}${each} would be loaded${where}${from}${took}.`);
    const victims = plan.victims || [];
    if (victims.length) {
        const words = victims.map((v) => `${plain(v.name)} (${bytes(v.bytes)}` +
            (several && v.device ? ` on ${plain(v.device)}` : "") +
            (v.idle_s ? `, idle ${seconds(v.idle_s)}` : "") +
            (v.back_s >= 0 ? `, back in ${seconds(v.back_s)}` : "") + ")");
        said.push(`It would evict ${list(words)}.`);
    } else if (!plan.turns) {
        said.push("No model would be evicted.");
    }
    if (plan.turns) {
        said.push("Models of its class that are at work would be evicted in turns, when requests " +
            `for ${name} come.`);
    } else if (plan.now === false) {
        said.push("There is no room now: it would wait until there is.");
    }
    return said;
}

const isBusy = (by) => by.hasAttribute("aria-busy");
const setBusy = (by, on) => setAttr(by, "aria-busy", on ? "true" : null);

const ASK = {
    unload: ["Unload",
        "It leaves the device when they have ended; a later request brings it back."],
    drop: ["Drop", "It leaves the device and host memory when they have ended."],
    drain: ["Drain", "They end, new requests are refused with 503, then it leaves the device."],
};

const comesBack = (m, what) => what !== "drain" && m.pin === "hot";

export class Commands {
    constructor() {
        this.dialog = byId("ask");
        this.title = byId("ask-title");
        this.text = byId("ask-text");
        this.error = byId("ask-error");
        this.yes = byId("ask-yes");
        this.note = el("div", { class: "note", role: "alert", hidden: true });
        this.noteText = el("span", {});
        this.note.append(this.noteText, button("Close", { class: "small" }, () => this.hideNote()));
        document.body.append(this.note);
        this.asked = null; // a value of its own for the newest plan or question
        byId("ask-no").addEventListener("click", () => this.dialog.close());
        this.yes.addEventListener("click", () => !isBusy(this.yes) && this.confirmed?.());
        document.addEventListener("keydown", (e) => e.key === "Escape" && this.hideNote());
    }

    /**
     * What a button of a model does.
     * @param {?Object} m the model's row
     * @param {string} what a command's name, or "pin warm"
     * @param {HTMLElement} by the button
     */
    async act(m, what, by) {
        if (!m || isBusy(by)) return;
        this.hideNote();
        const loads =
            what === "load" || what === "undrain" || (what === "pin" && m.state !== "hot");
        if (loads) await this.planned(m, what, by);
        else if (ASK[what] && (m.running > 0 || comesBack(m, what))) this.askFirst(m, what, by);
        else await this.send(m, what, by);
    }

    /** Shows the plan and asks, unless there is a newer question, or another dialog. */
    async planned(m, what, by) {
        const asked = this.asked = {};
        setBusy(by, true);
        const plan = await command("/admin/plan", { load: m.name });
        setBusy(by, false);
        const top = document.querySelector("dialog[open]");
        if (this.asked !== asked || top !== by.closest("dialog")) return;
        const name = plain(m.name);
        const verb = { pin: "Load and pin", undrain: "End the drain and load" }[what] ?? "Load";
        const said =
            plan.ok ? planSentences(plan.body, name) : ["There is no plan: " + plan.message];
        const fits = !plan.ok || (plan.body.fits && !plan.body.problems?.length);
        this.open(verb + " " + name + "?", said, fits ? verb : verb + " anyway", m, what, by);
    }

    askFirst(m, what, by) {
        const [verb, then] = ASK[what];
        const name = plain(m.name);
        const said =
            m.running > 0 ? [`${name} has ${plural(m.running, "running request")}.`, then] : [];
        if (comesBack(m, what)) said.push("It is pinned and comes back at once; unpin it first.");
        this.open(`${verb} ${name}?`, said, verb, m, what, by);
    }

    open(title, sentences, verb, m, what, by) {
        setText(this.title, title);
        this.text.replaceChildren(...sentences.map((s) => el("p", {}, s)));
        setText(this.yes, verb);
        show(this.error, false);
        setBusy(this.yes, false);
        const asked = this.asked = {};
        this.confirmed = async () => {
            setBusy(this.yes, true);
            const problem = await this.post(m, what);
            const isMine = this.asked === asked;
            if (isMine) setBusy(this.yes, false);
            if (!isMine || !this.dialog.open) { // cancelled meanwhile
                if (problem) this.showNote(`${plain(m.name)}: ${problem}`, by);
            } else if (problem) {
                setText(this.error, problem);
                show(this.error, true);
            } else {
                this.dialog.close();
                by.focus();
            }
        };
        if (!this.dialog.open) this.dialog.showModal();
        this.yes.focus();
    }

    async send(m, what, by) {
        setBusy(by, true);
        const problem = await this.post(m, what);
        setBusy(by, false);
        if (problem) this.showNote(`${plain(m.name)}: ${problem}`, by);
    }

    /** The sentence of an error, or "". */
    async post(m, what) {
        const [verb, level] = what === "pin warm" ? ["pin", "warm"] : [what, "hot"];
        const path = modelPath(m.name, verb);
        if (!path) return "a model of this name cannot be named in a path";
        const answer = await command(path, verb === "pin" ? { level } : {});
        if (answer.status === 401) this.needKey?.(answer.message);
        return answer.ok ? "" : plain(answer.message);
    }

    /** An error, beside the button; it covers, and moves nothing. */
    showNote(text, by) {
        const host = by.closest("dialog") || document.body;
        if (this.note.parentNode !== host) host.append(this.note);
        setText(this.noteText, text);
        show(this.note, true);
        const r = by.getBoundingClientRect();
        const w = Math.min(360, innerWidth - 16);
        setStyle(this.note, "width", w + "px");
        setStyle(this.note, "left", Math.max(8, Math.min(r.right - w, innerWidth - w - 8)) + "px");
        const below = r.bottom + 6 + this.note.offsetHeight < innerHeight;
        setStyle(this.note, "top",
            (below ? r.bottom + 6 : r.top - 6 - this.note.offsetHeight) + "px");
        clearTimeout(this.noteTimer);
        this.noteTimer = setTimeout(() => this.hideNote(), NOTE_MS);
    }

    hideNote() {
        show(this.note, false);
    }
}

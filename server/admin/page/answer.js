// answer.js - one message: text as it comes, reasoning, tool calls, log-probabilities.
//
// Pieces are kept until the next frame; then text nodes grow at their end.  With formatted text the
// blocks of Markdown that are complete stay as they are, and the last one is made again.

import { el, setText, setAttr, setStyle, show, drawSoon, byId } from "./dom.js";
import { plain } from "./format.js";
import { block, blocks } from "./markdown.js";

export class Answer {
    /** @param {boolean} formatted  @param {() => void} grew  called before and after a change */
    constructor(formatted, grew) {
        this.formatted = formatted;
        this.grew = grew;
        this.text = "";
        this.reasoning = "";
        this.calls = [];
        this.tokens = []; // with log-probabilities: {text, entries}
        this.drawn = 0; // tokens that are on the screen
        this.done = false;
        this.thoughts = el("div", { class: "thoughts-text", dir: "auto" });
        this.summary = el("summary", {}, "Reasoning");
        this.details = el("details", { class: "thoughts", open: true, hidden: true }, this.summary,
            this.thoughts);
        this.content = el("div", { class: "text", dir: "auto" });
        this.callBox = el("div", { class: "calls" });
        this.error = el("p", { class: "error", role: "alert", hidden: true });
        this.root = el("article", { class: "message assistant", "aria-busy": true }, this.details,
            this.content, this.callBox, this.error);
        this.starts = [];
        this.blockNodes = [];
    }

    /** A piece of the message, as a delta of the stream has it. */
    push(delta, logprobs) {
        const thought = delta.reasoning_content ?? delta.reasoning;
        if (thought) this.reasoning += thought;
        if (delta.content) {
            if (logprobs?.length) this.pushTokens(delta.content, logprobs);
            else if (this.tokens.length) this.tokens.push({ text: delta.content, entries: [] });
            this.text += delta.content;
        }
        for (const call of delta.tool_calls || []) this.pushCall(call);
        drawSoon(this);
    }

    /** One part of text for each token, where the tokens' texts make up the piece. */
    pushTokens(text, entries) {
        if (!this.tokens.length && this.text) this.tokens.push({ text: this.text, entries: [] });
        if (entries.length > 1 && entries.map((e) => e.token).join("") === text) {
            for (const entry of entries) this.tokens.push({ text: entry.token, entries: [entry] });
        } else {
            this.tokens.push({ text, entries });
        }
    }

    pushCall(piece) {
        const i = piece.index ?? this.calls.length;
        const call =
            this.calls[i] ??= { id: "", type: "function", function: { name: "", arguments: "" } };
        if (piece.id) call.id = piece.id;
        if (piece.function?.name) call.function.name += piece.function.name;
        if (piece.function?.arguments) call.function.arguments += piece.function.arguments;
    }

    end(error) {
        this.done = true;
        this.failed = error || "";
        drawSoon(this);
    }

    draw() {
        const follow = this.grew();
        if (this.reasoning) {
            show(this.details, true);
            grow(this.thoughts, this.reasoning);
            if (this.text && !this.closed) {
                this.closed = true;
                this.details.open = false;
            }
        }
        if (this.tokens.length) this.drawTokens();
        else if (this.formatted && this.text) this.drawBlocks();
        else grow(this.content, this.text);
        this.calls.forEach((call, i) => this.drawCall(call, i));
        show(this.error, !!this.failed);
        setText(this.error, this.failed ? plain(this.failed) : "");
        if (this.done) this.root.removeAttribute("aria-busy");
        follow();
        return false;
    }

    drawBlocks() {
        const starts = blocks(this.text);
        starts.forEach((start, i) => {
            const end = starts[i + 1] ?? this.text.length;
            if (this.starts[i] === start && this.ends?.[i] === end) return;
            const made = block(this.text.slice(start, end));
            if (this.blockNodes[i]) this.blockNodes[i].replaceWith(made);
            else this.content.append(made);
            this.blockNodes[i] = made;
        });
        while (this.blockNodes.length > starts.length) this.blockNodes.pop().remove();
        this.starts = starts;
        this.ends = starts.map((_, i) => starts[i + 1] ?? this.text.length);
    }

    drawTokens() {
        if (this.drawn === 0) {
            this.content.replaceChildren();
            setAttr(this.content, "tabindex", 0);
            this.listen();
        }
        for (; this.drawn < this.tokens.length; this.drawn++) {
            const token = this.tokens[this.drawn];
            const p = token.entries.length ?
                Math.exp(Math.min(...token.entries.map((e) => e.logprob))) : 1;
            const level = p > 0.9 ? 0 : p > 0.6 ? 1 : p > 0.3 ? 2 : p > 0.1 ? 3 : 4;
            const span = el("span", { class: "token p" + level }, token.text);
            span.dataset.i = this.drawn;
            this.content.append(span);
        }
    }

    listen() {
        this.content.addEventListener("pointerover", (e) => this.point(e.target.closest(".token")));
        this.content.addEventListener("pointerleave", () => this.point(null));
        this.content.addEventListener("blur", () => this.point(null));
        this.content.addEventListener("keydown", (e) => {
            const step =
                { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity, Escape: 0 }[e.key];
            if (step === undefined) return;
            if (e.key !== "Escape") e.preventDefault();
            else if (this.pointed) e.stopPropagation(); // it closes the tip, and stops no answer
            const last = this.tokens.length - 1;
            const at = Math.max(0, Math.min(last, this.at === undefined ? 0 : this.at + step));
            this.point(step === 0 ? null : this.content.children[at], true);
        });
    }

    point(span, byKey = false) {
        this.pointed?.classList.remove("at");
        this.pointed = span;
        if (span) {
            this.at = Number(span.dataset.i);
            span.classList.add("at");
            if (byKey) span.scrollIntoView({ block: "nearest" });
        }
        tokenTip(span, span ? this.tokens[this.at].entries : [], byKey);
    }

    drawCall(call, i) {
        let box = this.callBox.children[i];
        if (!box) {
            const result = el("textarea", { rows: 1, placeholder: "Result for the model",
                "aria-label": "Result of the call" });
            box = el("div", { class: "call" },
                el("div", { class: "call-head" }, "calls ", el("b", {})),
                el("pre", {}, el("code", {})), result);
            this.callBox.append(box);
        }
        setText(box.querySelector("b"), plain(call.function.name));
        setText(box.querySelector("code"), call.function.arguments);
    }

    /** Results that were typed for the calls. */
    results() {
        const typed = (i) => this.callBox.children[i]?.querySelector("textarea").value ?? "";
        const all = this.calls.map((call, i) =>
            ({ role: "tool", tool_call_id: call.id, content: typed(i) }));
        return all.filter((r) => r.content);
    }

    isEmpty() {
        return !this.text && !this.reasoning && !this.calls.length;
    }

    /** The message for the next request. */
    message() {
        const message = { role: "assistant", content: this.text };
        if (this.reasoning) message.reasoning_content = this.reasoning;
        if (this.calls.length) message.tool_calls = this.calls;
        return message;
    }
}

/** Lets the text of an element grow at its end. */
function grow(element, text) {
    const node = element.firstChild;
    if (!node) {
        if (text) element.append(text);
    } else if (node.data.length < text.length) {
        node.appendData(text.slice(node.data.length));
    }
}

let tip = null;

/** The alternatives of a token, beside it. */
function tokenTip(span, entries, aloud) {
    if (!tip) {
        tip = el("div", { class: "tip token-tip", hidden: true, "aria-hidden": true });
        document.body.append(tip);
    }
    show(tip, !!span && entries.length > 0);
    if (!span || !entries.length) return;
    const rows = [];
    for (const entry of entries) {
        const all = entry.top_logprobs?.length ? entry.top_logprobs : [entry];
        const known = all.some((a) => a.token === entry.token);
        for (const other of known ? all : [entry, ...all]) {
            const p = (Math.exp(other.logprob) * 100).toFixed(1) + " %";
            rows.push(el("tr", { class: other.token === entry.token ? "chosen" : null },
                el("td", {}, el("bdi", {}, visible(other.token))), el("td", { class: "num" }, p),
                el("td", { class: "num" }, other.logprob.toFixed(3))));
        }
    }
    tip.replaceChildren(el("table", {}, el("tbody", {}, ...rows)));
    const r = span.getBoundingClientRect();
    const w = tip.offsetWidth;
    const h = tip.offsetHeight;
    setStyle(tip, "left", Math.max(4, Math.min(r.left, innerWidth - w - 8)) + "px");
    setStyle(tip, "top", (r.bottom + h + 8 < innerHeight ? r.bottom + 6 : r.top - h - 6) + "px");
    if (aloud) {
        const entry = entries[0];
        setText(byId("said"),
            `${visible(entry.token)}: ${(Math.exp(entry.logprob) * 100).toFixed(1)} percent`);
    }
}

/** A token with its white space visible. */
const marks = { "\n": "⏎", "\t": "⇥", " ": "␣" };
const visible = (token) => plain(token.replace(/[\n\t ]/g, (c) => marks[c]));

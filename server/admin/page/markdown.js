// markdown.js - a small part of Markdown as elements: paragraphs, headings, lists, code, strong and
// emphasised text.  Everything else stays the text that it is; links and pictures, too, so an
// answer cannot make the browser ask for anything.

import { el, button } from "./dom.js";

// `code`, **strong**, *emphasised*: groups 2, 3 and 4.  Marks without an end must not make the
// time quadratic: a run of backticks begins at its first, and strong text ends at the next `**`.
const CODE = /(?<!`)(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/;
const STRONG = /\*\*(\S(?:(?:[^*]|\*(?!\*))*\S)?)\*\*/;
const EMPHASIS = /(?<![*\w])\*(\S(?:[^*\n]*\S)?)\*(?![*\w])/;
const INLINE = new RegExp([CODE, STRONG, EMPHASIS].map((r) => r.source).join("|"), "g");

/** Text with code, strong and emphasised parts. */
function inline(into, text) {
    let from = 0;
    for (const found of text.matchAll(INLINE)) {
        into.append(text.slice(from, found.index));
        if (found[2] !== undefined) into.append(el("code", {}, found[2]));
        else if (found[3] !== undefined) into.append(el("strong", {}, found[3]));
        else into.append(el("em", {}, found[4]));
        from = found.index + found[0].length;
    }
    into.append(text.slice(from));
    return into;
}

/** Ends of blocks: [start of a block, ...]; a block is a fence, or lines up to an empty line. */
export function blocks(text) {
    const starts = [0];
    let fence = "";
    let empty = false;
    let at = 0;
    for (const line of text.split("\n")) {
        const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line);
        const begins = !fence && (mark || (empty && line.trim()));
        if (begins && at > starts[starts.length - 1]) starts.push(at);
        const after = at + line.length + 1;
        if (fence) {
            if (mark && mark[1].startsWith(fence) && line.trim() === mark[1]) {
                fence = "";
                if (after <= text.length) starts.push(after);
            }
        } else if (mark) {
            fence = mark[1];
        }
        empty = !line.trim();
        at = after;
    }
    return starts;
}

/** The element of one block. */
export function block(text) {
    const fence = /^ {0,3}(`{3,}|~{3,})([^\n]*)\n?([\s\S]*)$/.exec(text);
    if (fence) {
        const end = new RegExp("\\n? {0,3}" + fence[1] + "+\\s*$");
        return code(fence[3].replace(end, ""), fence[2].trim());
    }
    const head = /^(#{1,6}) +([^\n]*)\n?$/.exec(text);
    if (head) return inline(el("p", { class: "heading" }), head[2].replace(/(?<! ) +#+$/, ""));
    const lines = text.replace(/\n+$/, "").split("\n");
    const bullet = /^\s*(?:[-*+]|(\d+)[.)]) +/;
    const isList = bullet.test(lines[0]) && lines.every((l) => bullet.test(l) || /^\s+\S/.test(l));
    if (isList) return items(lines, bullet);
    return inline(el("p", {}), lines.join("\n"));
}

function items(lines, bullet) {
    const first = bullet.exec(lines[0]);
    const made = el(first[1] ? "ol" : "ul", { start: first[1] || null });
    let text = null;
    const push = () => text !== null && made.append(inline(el("li", {}), text));
    for (const line of lines) {
        if (bullet.test(line)) {
            push();
            text = line.replace(bullet, "");
        } else {
            text += "\n" + line.trim();
        }
    }
    push();
    return made;
}

function code(text, language) {
    const pre = el("pre", {}, el("code", {}, text));
    const select = () => getSelection().selectAllChildren(pre); // for the keys of the browser
    const copy = button("Copy", { class: "small copy" }, () =>
        (navigator.clipboard ? navigator.clipboard.writeText(text).catch(select) : select()));
    return el("div", { class: "code" }, el("span", { class: "dim" }, language), copy, pre);
}

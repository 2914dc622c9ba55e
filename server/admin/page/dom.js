// dom.js - elements made by name, texts that change in place, and the scheduler of frames.
//
// Everything that a model, a tenant or the daemon wrote reaches the document as the data of a text
// node or as the value of an attribute that cannot run.  There is no way here to insert markup.

/**
 * An element.  `attrs` are attributes ("class", "title", "aria-label", ...); null and false are
 * left out, true is an empty value.  Strings among `kids` become text nodes.
 * @param {string} tag
 * @param {Object<string, ?(string|number|boolean)>} [attrs]
 * @param {...(Node|string)} kids
 */
export function el(tag, attrs, ...kids) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attrs || {})) setAttr(made, name, value);
    made.append(...kids);
    return made;
}

/** Sets or removes an attribute, unless it has that value already. */
export function setAttr(element, name, value) {
    if (/^(on|style$|srcdoc$)/i.test(name)) throw new Error(`attribute ${name} is not allowed`);
    if (value === null || value === undefined || value === false) {
        if (element.hasAttribute(name)) element.removeAttribute(name);
        return;
    }
    const text = value === true ? "" : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** The text of an element that has only text.  An equal text costs no layout. */
export function setText(element, text) {
    const first = element.firstChild;
    if (first && first.nodeType === Node.TEXT_NODE && !first.nextSibling) {
        if (first.data !== text) first.data = text;
    } else if (element.textContent !== text || first) {
        element.textContent = text;
    }
}

/** Adds or removes a class, unless it is so already. */
export function setClass(element, name, on) {
    if (element.classList.contains(name) !== !!on) element.classList.toggle(name, !!on);
}

export function show(element, on) {
    if (element.hidden !== !on) element.hidden = !on;
}

export const byId = (id) => document.getElementById(id);

/** A button with a text. */
export function button(text, attrs, act) {
    const made = el("button", { type: "button", ...attrs }, text);
    if (act) made.addEventListener("click", act);
    return made;
}

/** Width of a bar's segment, or another style property (the policy allows no style attribute). */
export function setStyle(element, name, value) {
    if (element.style.getPropertyValue(name) !== value) element.style.setProperty(name, value);
}

/**
 * Frames.  A part of the page has a `draw(until)`, which draws what changed in it and returns true
 * when some of that is left because performance.now() passed `until`.  What is left goes into the
 * next frame, so a frame stays within its budget however much one delta changes.
 */
const BUDGET_MS = 3; // of script: style, layout and paint come on top
const waiting = new Set();
let asked = 0;

export function drawSoon(part) {
    waiting.add(part);
    if (!asked) asked = requestAnimationFrame(frame);
}

function frame() {
    const start = performance.now();
    asked = 0;
    const parts = [...waiting];
    waiting.clear();
    parts.forEach((part, i) => {
        const over = i > 0 && performance.now() > start + BUDGET_MS;
        if (over || drawn(part, start + BUDGET_MS)) waiting.add(part);
    });
    if (waiting.size) asked = requestAnimationFrame(frame);
    measured("inferd-frame", start);
}

/** A part that fails must not stop the others. */
function drawn(part, until) {
    try {
        return part.draw(until);
    } catch (e) {
        console.error(e);
        return false;
    }
}

/** Tells observers of "measure" entries how long a piece of work took; nothing is kept. */
export function measured(name, start) {
    performance.measure(name, { start, end: performance.now() });
    performance.clearMeasures(name);
}

/**
 * Calls `on` with the width and height of an element's content, in CSS pixels, now and when they
 * change.  To ask an element for its size while drawing would make the browser lay out the page.
 */
export function onSize(element, on) {
    const observer = new ResizeObserver(([{ contentRect }]) =>
        on(contentRect.width, contentRect.height));
    observer.observe(element);
}

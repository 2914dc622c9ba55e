// page.js - the page begins here: views, connection, theme, keys.
//
//     net.js Watch > store.js Store > pool, models, tenants, work, charts, events
//
// The stream fills the store, which tells the parts of the page what changed; each part draws in
// the next frame (dom.js).  The chat is apart: it speaks to /v1 with a key of its own.

import { byId, setText, setAttr, setClass, show, drawSoon, measured } from "./dom.js";
import { clock, int, plain, seconds, short } from "./format.js";
import { Store } from "./store.js";
import { Watch, keys, kept, takeKeyFromAddress } from "./net.js";
import { Pool } from "./pool.js";
import { Models } from "./models.js";
import { Tenants } from "./tenants.js";
import { Work } from "./work.js";
import { Charts } from "./charts.js";
import { Events } from "./events.js";
import { Commands } from "./commands.js";
import { Chat } from "./chat.js";

const STATES = { connecting: "connecting", live: "live", away: "no answer", key: "key needed",
    refused: "refused" };
const THEMES = ["auto", "dark", "light"];

takeKeyFromAddress();
const settings = kept("localStorage");
theme(settings.get("theme") || "auto");

const store = new Store();
const commands = new Commands();
const pool = new Pool(store);
new Models(store, commands, pool);
new Tenants(store);
new Work(store);
new Charts(store);
new Events(store);
const chat = new Chat(store);

const watch = new Watch((name, data, start) => {
    store.apply(name, data);
    measured("inferd-apply", start);
}, linked);

// -- connection -----------------------------------------------------------------------------------

/** A daemon that answers, but with an error, is not called silent. */
function stateWord() {
    return watch.state === "away" && watch.detail ? "no stream" : STATES[watch.state];
}

function linked(state, detail) {
    setText(byId("link"), stateWord());
    setAttr(byId("link"), "data-state", state);
    const away = state === "away";
    const begins = state === "connecting" && store.devices.size === 0;
    setClass(document.body, "stale", state !== "live" && !begins);
    show(byId("banner"), away || state === "refused" || state === "key");
    show(byId("banner-retry"), state !== "key");
    show(byId("banner-key"), state === "key" || state === "refused");
    if (away && detail) {
        setText(byId("banner-text"), plain(detail) + ". Trying again.");
    } else if (away) {
        const since = store.devices.size ? `: no answer since ${clock(watch.heard)}` : "";
        setText(byId("banner-text"), `The daemon does not answer${since}. Trying again.`);
    } else if (detail) {
        setText(byId("banner-text"), plain(detail));
    }
    if (state === "key") askKey(detail);
    if (state === "live" && byId("key").open) byId("key").close();
    chat.linked(state);
    title();
}

function askKey(why) {
    setText(byId("key-text"), plain(why || "The daemon wants a key of an administrator."));
    byId("key-input").value = "";
    if (!byId("key").open) byId("key").showModal();
}

commands.needKey = askKey;
byId("key-form").addEventListener("submit", (e) => {
    e.preventDefault();
    keys.set("admin_key", byId("key-input").value.trim());
    byId("key-input").value = "";
    byId("key").close();
    watch.retry();
});
byId("key-cancel").addEventListener("click", () => byId("key").close());
byId("banner-retry").addEventListener("click", () => watch.retry());
byId("banner-key").addEventListener("click", () => askKey(""));
addEventListener("online", () => watch.state === "away" && watch.retry());
document.addEventListener("visibilitychange", () => {
    if (!document.hidden && watch.state === "away") watch.retry();
});

// -- the head: what the daemon is, and its rates -------------------------------------------------

const head = {
    draw() {
        const d = store.daemon;
        setText(byId("d-version"), d.version ? plain(d.version) : "");
        setAttr(byId("d-version"), "title",
            d.config ? "configuration: " + plain(d.config) : "without a configuration file");
        const age = Math.max(1, Math.floor(store.now() / 1000 - d.started_at));
        setText(byId("d-uptime"), d.started_at ? "up " + seconds(age) : "");
        const flags = [d.draining && "draining", d.unsaved > 0 && int(d.unsaved) + " unsaved",
            d.faults && "fault drills"];
        setText(byId("d-flags"), flags.filter(Boolean).join(", "));
        const row = store.rows[store.rows.length - 1];
        setText(byId("f-in"), row ? short(row[5]) : "–");
        setText(byId("f-out"), row ? short(row[6]) : "–");
        return false;
    },
};
for (const topic of ["reset", "daemon", "history"]) store.on(topic, () => drawSoon(head));
setInterval(() => drawSoon(head), 1000);

// -- views, theme, keys --------------------------------------------------------------------------

function view() {
    if (takeKeyFromAddress()) watch.retry();
    const inChat = /^#chat/.test(location.hash);
    show(byId("board"), !inChat);
    show(byId("chat"), inChat);
    setAttr(byId("to-board"), "aria-current", inChat ? null : "page");
    setAttr(byId("to-chat"), "aria-current", inChat ? "page" : null);
    title();
    if (inChat) chat.open(location.hash.slice(5).replace(/^=/, ""));
}

function title() {
    const name = byId("chat").hidden ? "inferd" : "Chat – inferd";
    const well = watch.state === "live" || watch.state === "connecting";
    document.title = well ? name : `${stateWord()} – ${name}`;
}

function theme(name) {
    if (name === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", name);
    setText(byId("theme"), name[0].toUpperCase() + name.slice(1));
}

byId("theme").addEventListener("click", () => {
    const now = document.documentElement.getAttribute("data-theme") || "auto";
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    settings.set("theme", next);
    theme(next);
    pool.recolor();
    store.tell("recolor");
});
byId("help-open").addEventListener("click", () => byId("help").showModal());
byId("help-close").addEventListener("click", () => byId("help").close());
byId("details-close").addEventListener("click", () => byId("details").close());

document.addEventListener("keydown", (e) => {
    const typing = e.target.closest("input, textarea, select, dialog");
    if (typing || e.ctrlKey || e.altKey || e.metaKey) return;
    const act = {
        "?": () => byId("help").showModal(),
        b: () => (location.hash = "#board"),
        c: () => (location.hash = "#chat"),
        "/": () => byId("models-filter").focus(),
        m: () => document.querySelector(".map")?.focus(),
    }[e.key];
    if (!act || (e.target.matches(".map") && e.key === "m")) return;
    e.preventDefault();
    act();
});

addEventListener("hashchange", view);
view();
watch.run();

// completion.js - one request of a chat: its body from the settings, its stream as events.

import { byId } from "./dom.js";
import { ask, errorOf, events } from "./net.js";

const NUMBERS = [ // field, whole number
    ["temperature", false], ["top_p", false], ["top_k", true], ["min_p", false], ["seed", true],
    ["max_tokens", true],
];
const TOP_LOGPROBS = 5;

/** A setting that is no number or no JSON. */
export class BadSetting extends Error {}

function json(id, what) {
    const text = byId(id).value.trim();
    if (!text) return undefined;
    try {
        return JSON.parse(text);
    } catch (e) {
        throw new BadSetting(`${what} is no JSON: ${e.message}`);
    }
}

/** The fields of a request that the settings give, without model and messages. */
export function settings() {
    const body = { stream: true, stream_options: { include_usage: true } };
    for (const [name, whole] of NUMBERS) {
        const text = byId("s-" + name).value.trim();
        if (!text) continue;
        const n = Number(text);
        if (!isFinite(n) || (whole && !Number.isInteger(n))) {
            throw new BadSetting(`${name} is "${text}", expected a ${whole ? "whole " : ""}number`);
        }
        body[name] = n;
    }
    const stop = byId("s-stop").value.split("\n").filter(Boolean);
    if (stop.length) body.stop = stop;
    if (byId("s-logprobs").checked) {
        body.logprobs = true;
        body.top_logprobs = TOP_LOGPROBS;
    }
    const schema = json("s-schema", "the JSON schema");
    if (schema !== undefined) {
        body.response_format =
            { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
    }
    const tools = json("s-tools", "the list of tools");
    if (tools !== undefined) body.tools = Array.isArray(tools) ? tools : [tools];
    return body;
}

/**
 * Sends a request and reads its answer.
 * @param {(delta: Object, logprobs: ?Object[]) => void} on  each piece of the message
 * @returns {Promise<{finish: string, usage: ?Object}>}
 * @throws {Error} with a sentence for the reader
 */
export async function complete(body, signal, on) {
    const response =
        await ask("/v1/chat/completions", "tenant_key", { method: "POST", body, signal });
    if (!response.ok) throw new Error(await errorOf(response));
    let finish = "";
    let usage = null;
    for await (const { data } of events(response.body)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message || "the answer ended with an error");
        if (chunk.usage) usage = chunk.usage;
        const choice = chunk.choices?.[0];
        if (!choice) continue;
        on(choice.delta || {}, choice.logprobs?.content || null);
        if (choice.finish_reason) finish = choice.finish_reason;
    }
    if (!finish) throw new Error("the connection broke before the answer ended");
    return { finish, usage };
}

/** Names of the models that this key may use. */
export async function modelNames() {
    const response = await ask("/v1/models", "tenant_key");
    if (response.status === 404) {
        const error = new Error("This listener has no /v1 routes: open the page at the main " +
            "listener (admin.page) to chat.");
        error.status = 404;
        throw error;
    }
    if (!response.ok) {
        const error = new Error(await errorOf(response));
        error.status = response.status;
        throw error;
    }
    return (await response.json()).data.map((m) => m.id);
}

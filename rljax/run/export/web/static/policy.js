// The policy: an ONNX file, run by onnxruntime-web. Nothing else of the page knows what runs it.

import * as ort from "./ort.js";

const ARRAYS = { bool: Uint8Array, float32: Float32Array, int32: Int32Array, uint8: Uint8Array };

const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
const NOISE = { uniform: Math.random, normal, gumbel: () => -Math.log(-Math.log(1 - Math.random())) };

/**
 * Return the policy's step, `({ obs, mask, seat, carry }) -> { action, probs, carry }` of one environment.
 *
 * A carry of null begins an episode. `action` is an array of numbers; `probs` has the probability of each action, or is null if
 * the policy has none. `inputs` are those of the ONNX file by name, with shape, dtype, and the distribution of random numbers;
 * `sha256` is its checksum, which browsers compute of pages from https and from this machine only.
 */
export async function loadPolicy(inputs, sha256 = null) {
  // One thread needs no headers of the server, and a small network is no faster with more.
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = await fetchUnpacked("ort.wasm.gz");
  const model = await (await fetchExported("policy.onnx")).arrayBuffer();
  if (sha256 !== null && crypto.subtle && (await checksum(model)) !== sha256)
    throw new Error("policy.onnx is not the file that was exported: its checksum differs");
  const session = await ort.InferenceSession.create(new Uint8Array(model), { executionProviders: ["wasm"] });
  // What nothing reads is no input of the file.
  const read = session.inputNames.map((name) => [name, inputs[name]]);

  return async ({ obs, mask = null, seat = 0, carry = null }) => {
    const feeds = {};
    for (const [name, { shape, dtype, distribution }] of read) {
      const dims = [1, ...shape.slice(1)];
      const data = new ARRAYS[dtype](dims.reduce((a, b) => a * b));
      if (name === "obs" || name === "obs.obs") data.set(obs);
      else if (name === "obs.group") data[seat] = 1; // players with parameters of their own
      else if (name === "mask") data.set(mask);
      else if (distribution) data.forEach((_, i) => (data[i] = NOISE[distribution]()));
      else if (carry) data.set(carry[name]);
      feeds[name] = new ort.Tensor(dtype, data, dims);
    }
    const results = await session.run(feeds);
    const after = Object.entries(results).filter(([name]) => name.startsWith("next_"));
    return {
      action: Array.from(results.action.data, Number),
      probs: results.probs ? Array.from(results.probs.data) : null,
      carry: Object.fromEntries(after.map(([name, x]) => [name.slice("next_".length), x.data])),
    };
  };
}

/** Draw an action from probabilities, those of illegal actions are 0. */
export function drawn(probs) {
  let left = Math.random() * probs.reduce((a, b) => a + b);
  let chosen = 0;
  probs.forEach((p, action) => {
    if (left > 0 && p > 0) chosen = action;
    left -= p;
  });
  return chosen;
}

/** Fetch a file of the export. The browser asks whether its copy is still the server's: the folder may hold a newer export. */
export async function fetchExported(name) {
  const response = await fetch(name, { cache: "no-cache" });
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response;
}

/** Return the SHA-256 of bytes in hexadecimal digits. */
async function checksum(data) {
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Fetch a file that was compressed with gzip; some servers say so, and then the browser has unpacked it already. */
async function fetchUnpacked(name) {
  const data = await (await fetchExported(name)).arrayBuffer();
  const [a, b] = new Uint8Array(data);
  if (a !== 0x1f || b !== 0x8b) return data;
  return new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

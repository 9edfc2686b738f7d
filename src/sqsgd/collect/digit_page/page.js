/** The page of a study of digits: all that it computes stays here, except the report. */

import { Ledger, Refused, Scheme, makeTask, normalised, probabilities, softHog, softmaxGradient } from "./sqsgd.js";

const CAP = 16; // ε that this browser gives to all studies of this site together
const SIDE = 28, BOX = 20;
const MEAN = 0.1307, DEVIATION = 0.3081; // of MNIST's pixels, as the model expects them
const find = (id) => document.getElementById(id);
const drawing = find("drawing").getContext("2d", { willReadFrequently: true });
const small = find("small").getContext("2d", { willReadFrequently: true });
let study, scheme, ledger, model, sending = false, unsent = false;

/** The answer of the service; an error in its own words if it refuses. */
async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The service cannot be reached. Nothing was lost: try again later.");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Error(`The service says: ${said.reason ?? response.statusText}. ${said.what_to_do ?? ""}`);
}

function say(text, refused = false) {
  find("status").textContent = text;
  find("status").classList.toggle("refused", refused);
}

async function showProgress() {
  study = await (await ask("study")).json();
  const ended = study.state === "ended";
  find("progress").textContent = ended
    ? "This study has ended."
    : `Round ${study.round + 1} of ${study.rounds}: ${study.reports} of ${study.slots} reports.`;
}

/** Where this device's invitation is: behind the #, which browsers do not send. */
function invitation() {
  return new URLSearchParams(location.hash.slice(1)).get("invitation");
}

/** The secret of this device for this study, the same after a crash. */
function ticket() {
  const key = `sqsgd ticket ${study.study}`;
  let kept = localStorage.getItem(key);
  if (!kept) {
    const drawn = crypto.getRandomValues(new Uint8Array(32));
    kept = Array.from(drawn, (byte) => byte.toString(16).padStart(2, "0")).join("");
    localStorage.setItem(key, kept);
  }
  return kept;
}

/** The ink of the drawing: its box and its centre of mass; none if nothing was drawn. */
function ink() {
  const { data } = drawing.getImageData(0, 0, 280, 280);
  let left = 280, right = -1, top = 280, bottom = -1, sum = 0, sumX = 0, sumY = 0;
  for (let y = 0; y < 280; y++) {
    for (let x = 0; x < 280; x++) {
      const weight = data[4 * (280 * y + x)];
      if (!weight) continue;
      left = Math.min(left, x); right = Math.max(right, x);
      top = Math.min(top, y); bottom = Math.max(bottom, y);
      sum += weight; sumX += weight * (x + 0.5); sumY += weight * (y + 0.5);
    }
  }
  return sum ? { size: Math.max(right - left, bottom - top) + 1, x: sumX / sum, y: sumY / sum } : null;
}

/** The drawing as MNIST's images are: 20 pixels high or wide, its centre of mass in the middle of 28 x 28. */
function image() {
  const found = ink();
  small.setTransform(1, 0, 0, 1, 0, 0);
  small.fillStyle = "#000";
  small.fillRect(0, 0, SIDE, SIDE);
  if (!found) return null;
  const scale = BOX / Math.max(found.size, BOX);
  small.imageSmoothingQuality = "high";
  small.setTransform(scale, 0, 0, scale, SIDE / 2 - scale * found.x, SIDE / 2 - scale * found.y);
  small.drawImage(drawing.canvas, 0, 0);
  const { data } = small.getImageData(0, 0, SIDE, SIDE);
  return Float32Array.from({ length: SIDE * SIDE }, (_, i) => data[4 * i]);
}

function label() {
  const chosen = document.querySelector("#labels input:checked");
  return chosen ? Number(chosen.value) : null;
}

/** What stays: features, the model's reading, the gradient. Null until there are a drawing and a digit. */
function compute(weights) {
  const pixels = image(), digit = label();
  find("label").textContent = digit ?? "none yet";
  find("send").disabled = sending || !ledger || (!unsent && (pixels === null || digit === null));
  if (pixels === null) return null;
  const features = softHog(normalised(pixels, MEAN, DEVIATION), SIDE, SIDE);
  find("features").textContent = `${features.length} numbers`;
  if (!weights) return null;
  const chances = probabilities(weights, features);
  const best = chances.indexOf(Math.max(...chances));
  const known = weights.some((weight) => weight !== 0);
  find("guess").textContent = known ? `${best}, ${Math.round(100 * chances[best])} % sure` : "nothing: it is untrained";
  if (digit === null) return null;
  const { gradient } = softmaxGradient(weights, [{ features, label: digit }]);
  find("gradient").textContent = `a gradient of ${gradient.length.toLocaleString("en")} numbers`;
  return gradient;
}

function showBytes(message) {
  find("bytes").textContent = Array.from(message, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

async function showSpent() {
  find("spent").textContent = `ε ${await ledger.spent()} of at most ${CAP}`;
}

/** Join, make the one report, store it, send it. After a crash the stored report is sent again. */
async function send() {
  sending = true;
  find("send").disabled = true;
  try {
    const entry = (await ledger.entries()).find((each) => each.study === study.study);
    if (entry && !entry.message) throw new Refused("reported", "");
    const secret = ticket(), invited = invitation();
    const body = { study: study.study, ticket: secret, ...(invited ? { invitation: invited } : {}) };
    const headers = { "content-type": "application/json" };
    const slot = await (await ask("join", { method: "POST", headers, body: JSON.stringify(body) })).json();
    const weights = new Float32Array(await (await ask(slot.model.slice(1))).arrayBuffer());
    const gradient = compute(weights);
    const task = JSON.stringify(slot.task);
    const draw = () => scheme.encode(gradient, makeTask(slot.task));
    const message = await ledger.report(study.study, scheme.epsilon, task, draw);
    await showSpent();
    showBytes(message);
    await ask("report", { method: "POST", headers: { authorization: `Bearer ${secret}` }, body: message });
    await ledger.confirm(study.study);
    unsent = false;
    say("Thank you. These bytes were sent, and nothing else of your drawing. This browser has made its one report.");
    setTimeout(() => showProgress().catch(() => undefined), 1500); // the service counts once a second
  } catch (error) {
    if (error instanceof Refused && error.reason === "reported") {
      say("Refused: this browser has made its one report to this study. A second one would tell more about you.", true);
    } else if (error instanceof Refused && error.reason === "cap") {
      say(`Refused: this browser gives at most ε ${CAP} to all studies together.`, true);
    } else if (error instanceof Refused) {
      say("Refused: the service asks for something else than the report that this browser has made for it.", true);
    } else {
      say(error.message, true);
    }
  } finally {
    sending = false;
    compute(model);
  }
}

function stroke(from, to) {
  drawing.strokeStyle = "#fff";
  drawing.lineWidth = 22;
  drawing.lineCap = drawing.lineJoin = "round";
  drawing.beginPath();
  drawing.moveTo(...from);
  drawing.lineTo(...to);
  drawing.stroke();
}

function clear() {
  drawing.fillStyle = "#000";
  drawing.fillRect(0, 0, 280, 280);
  compute(model);
}

function listen() {
  const canvas = drawing.canvas;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [(280 * (event.clientX - box.left)) / box.width, (280 * (event.clientY - box.top)) / box.height];
  };
  let last = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = at(event);
    stroke(last, last);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    const next = at(event);
    stroke(last, next);
    last = next;
  });
  const end = () => {
    last = null;
    compute(model);
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  find("clear").addEventListener("click", clear);
  find("send").addEventListener("click", send);
  find("labels").addEventListener("change", () => compute(model));
}

async function start() {
  for (let digit = 0; digit < 10; digit++) {
    const box = document.createElement("label"), input = document.createElement("input");
    Object.assign(input, { type: "radio", name: "digit", value: String(digit) });
    box.append(input, String(digit));
    find("labels").append(box);
  }
  listen();
  clear();
  await showProgress();
  scheme = new Scheme(study.identity.join("\n"), study.wire);
  ledger = await Ledger.open(CAP);
  document.title = find("name").textContent = study.name;
  find("size").textContent = scheme.bytes;
  find("epsilon").textContent = scheme.epsilon;
  const chance = 100 / (1 + Math.exp(-scheme.epsilon));
  find("meaning").textContent =
    "Somebody who sees these bytes and considers two drawings equally likely guesses which of them is yours " +
    `with at most ${chance.toFixed(chance > 99 ? 2 : 1)} % success.`;
  await showSpent();
  const kept = (await ledger.entries()).find((entry) => entry.study === study.study);
  unsent = Boolean(kept?.message);
  if (unsent) say("This browser has made its report, and the service has not confirmed it: send it again.");
  model = new Float32Array(await (await ask(study.model.slice(1))).arrayBuffer());
  compute(model);
}

start().catch((error) => say(error.message, true));

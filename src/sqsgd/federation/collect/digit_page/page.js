/** The page of a study of digits: all that it computes stays here, except the report. */

import {
  Ledger, Refused, Scheme, checkWeights, normalised, probabilities, softHog, softmaxGradient,
} from "./sqsgd.js";

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
  const advice = said.what_to_do ? ` What to do: ${said.what_to_do}.` : "";
  throw new Error(`The service says: ${said.reason ?? response.statusText}.${advice}`);
}

function say(text, refused = false) {
  find("status").textContent = text;
  find("status").classList.toggle("refused", refused);
}

async function showProgress() {
  const now = await (await ask("study")).json();
  study ??= now; // what this visit is about; another study is another visit
  find("progress").textContent = now.state === "ended"
    ? "This study has ended."
    : `Round ${now.round + 1} of ${now.rounds}: ${now.reports} of ${now.slots} reports.`;
}

/** Where this device's invitation is: behind the #, which browsers do not send. */
function invitation() {
  return new URLSearchParams(location.hash.slice(1)).get("invitation");
}

/** The weights at the path that the service gives. Invalid ones are refused before they meet any data. */
async function fetchModel(path) {
  const weights = new Float32Array(await (await ask(path.replace(/^\/+/, ""))).arrayBuffer());
  if (weights.length !== scheme.dim) throw new Error(`The service sent ${weights.length} weights, not ${scheme.dim}.`);
  try {
    checkWeights(weights);
  } catch (error) {
    throw new Error(`The service sent a model that this page does not use: ${error.message}.`);
  }
  return weights;
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

function featuresOf(pixels) {
  return softHog(normalised(pixels, MEAN, DEVIATION), SIDE, SIDE);
}

/** What stays: features, the model's reading, the size of the gradient. */
function show() {
  const pixels = image(), digit = label();
  find("label").textContent = digit ?? "none yet";
  find("send").disabled = sending || !ledger || (!unsent && (pixels === null || digit === null));
  if (pixels === null) return;
  const features = featuresOf(pixels);
  find("features").textContent = `${features.length} numbers`;
  if (!model) return;
  const chances = probabilities(model, features);
  const best = chances.indexOf(Math.max(...chances));
  const known = model.some((weight) => weight !== 0);
  find("guess").textContent = known ? `${best}, ${Math.round(100 * chances[best])} % sure` : "nothing: it is untrained";
  if (digit !== null) find("gradient").textContent = `a gradient of ${model.length.toLocaleString("en")} numbers`;
}

function showBytes(message) {
  find("bytes").textContent = Array.from(message, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** Whether a report was made that the service has not confirmed. */
async function hasUnsent() {
  return (await ledger.unconfirmed(study.study)) !== null;
}

/** What ε means to a person; the percentage is rounded up. */
function meaning(epsilon) {
  const chance = 100 / (1 + Math.exp(-epsilon));
  const digits = chance > 99 ? 2 : 1;
  const most = Math.ceil(chance * 10 ** digits) / 10 ** digits;
  if (most >= 100) return `ε ${epsilon} does not limit what these bytes tell about your drawing in any useful way.`;
  return (
    "Somebody who sees these bytes and considers two drawings equally likely guesses which of them is yours " +
    `with at most ${most.toFixed(digits)} % success.`
  );
}

async function showSpent() {
  find("spent").textContent = `ε ${await ledger.spent()} of at most ${CAP}`;
}

/** Join and make the one report, which is stored before it is returned. */
async function makeReport(ticket, pixels, digit) {
  const invited = invitation();
  const body = JSON.stringify({ study: study.study, ticket, ...(invited ? { invitation: invited } : {}) });
  const headers = { "content-type": "application/json" };
  const slot = await (await ask("join", { method: "POST", headers, body })).json();
  const weights = await fetchModel(slot.model);
  const compute = () => softmaxGradient(weights, [{ features: featuresOf(pixels), label: digit }]).gradient;
  return ledger.report(study.study, scheme, slot.task, compute);
}

/** Send the one report. If it was made before and not confirmed, the same bytes are sent and no slot is taken. */
async function send() {
  const pixels = image(), digit = label(); // as they are at the click
  sending = true;
  find("send").disabled = true;
  try {
    const ticket = await ledger.ticket(study.study); // refused if this browser's report is confirmed
    let message = await ledger.unconfirmed(study.study);
    if (!message && (pixels === null || digit === null)) throw new Error("Draw a digit and say which one it is.");
    message ??= await makeReport(ticket, pixels, digit);
    await showSpent();
    showBytes(message);
    await ask("report", { method: "POST", headers: { authorization: `Bearer ${ticket}` }, body: message });
    await ledger.confirm(study.study);
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
    unsent = await hasUnsent();
    show();
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
  show();
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
    show();
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  find("clear").addEventListener("click", clear);
  find("send").addEventListener("click", send);
  find("labels").addEventListener("change", () => show());
}

async function start() {
  if (window.top !== window.self) { // a page around this one could trick a person into clicking
    find("progress").textContent = "";
    throw new Error("This page does not work inside another page. Open it in a window of its own.");
  }
  for (let digit = 0; digit < 10; digit++) {
    const box = document.createElement("label"), input = document.createElement("input");
    Object.assign(input, { type: "radio", name: "digit", value: String(digit) });
    box.append(input, String(digit));
    find("labels").append(box);
  }
  listen();
  clear();
  await showProgress();
  scheme = new Scheme(study.identity);
  ledger = await Ledger.open(CAP);
  document.title = find("name").textContent = study.name;
  find("size").textContent = scheme.bytes;
  find("epsilon").textContent = scheme.epsilon;
  find("meaning").textContent = meaning(scheme.epsilon);
  await showSpent();
  unsent = await hasUnsent();
  model = await fetchModel(study.model);
  show(); // from now on the button works
  if (unsent) say("This browser has made its report, and the service has not confirmed it: send it again.");
}

start().catch((error) => say(error.message, true));

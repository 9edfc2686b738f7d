/** The page of a study of digits: all that it computes stays here, except the report. */

import { Ledger, Refused, ServiceRefused, Visit, normalised, probabilities, softHog, softmaxGradient } from "./sqsgd.js";

const CAP = 16; // ε that this browser gives to all studies of this site together
const SIDE = 28, BOX = 20;
const MEAN = 0.1307, DEVIATION = 0.3081; // of MNIST's pixels, as the model expects them
const find = (id) => document.getElementById(id);
const drawing = find("drawing").getContext("2d", { willReadFrequently: true });
const small = find("small").getContext("2d", { willReadFrequently: true });
let ledger, visit, model, sending = false, unsent = false;

function say(text, refused = false) {
  find("status").textContent = text;
  find("status").classList.toggle("refused", refused);
}

/** An error in the words of the service, of this browser's ledger, or of the client. */
function explain(error) {
  if (error instanceof ServiceRefused && error.status === 0) {
    return say(`${error.message}. Nothing was lost: try again later.`, true);
  }
  const advice = error.advice ? ` What to do: ${error.advice}.` : "";
  if (error instanceof ServiceRefused) return say(`The service says: ${error.message}.${advice}`, true);
  if (!(error instanceof Refused)) return say(error.message, true);
  if (error.reason === "cap") return say(`Refused: this browser gives at most ε ${CAP} to all studies together.`, true);
  say(`Refused: ${error.message}.`, true);
}

const numbered = (round) => `round ${round + 1} of ${visit.terms.rounds}`;
const date = (seconds) => new Date(1000 * seconds).toLocaleString();

async function showProgress() {
  const { round, state, reports } = await visit.round();
  if (state === "waiting") find("progress").textContent = `This study begins on ${date(visit.terms.at(round))}.`;
  else if (state === "ended") find("progress").textContent = "This study has ended.";
  else find("progress").textContent = `${numbered(round).replace("r", "R")}: ${reports} reports so far.`;
  return round;
}

/** Where this device's invitation is: behind the #, which browsers do not send. */
function invitation() {
  return new URLSearchParams(location.hash.slice(1)).get("invitation");
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
  find("send").disabled = sending || !visit || (!unsent && (pixels === null || digit === null));
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

/** What leaves, when it leaves. */
function showSent({ message, round, sealed }) {
  find("bytes").textContent = Array.from(message, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
  if (!visit.terms.drawn) find("when").textContent = `now: in ${numbered(round)}, which is open`;
  showWay(sealed);
}

function showWay(sealed) {
  const { relay } = visit.terms, size = sealed ? `${sealed.toLocaleString("en")} bytes, as every request: ` : "";
  find("way").textContent = relay ? `${size}sealed, through the relay ${new URL(relay).host}` : "directly to the service";
  find("who").textContent = relay
    ? "The relay sees your address and not the bytes, the service the bytes and not your address. " +
      "If they work together, the noise alone protects you: see below."
    : "The service sees the bytes and your address. It does not log addresses unless its operator changed that.";
}

/** The rounds that this browser drew, or now; what all reports cost. */
async function showTerms() {
  const { scheme, reports, drawn } = visit.terms, waiting = await waitingReports();
  const times = waiting.map(({ round, due }) => `${numbered(round)}, on ${date(due)}`).join("; ");
  if (!drawn) find("when").textContent = "now: in the round that is open";
  else find("when").textContent = times ? `This browser drew ${times}.` : "in a round that this browser drew";
  find("cost").textContent = `ε ${scheme.epsilon * reports}${reports > 1 ? ` for ${reports} reports` : ""}`;
  find("meaning").textContent = meaning(scheme.epsilon * reports);
  showWay(0);
}

async function waitingReports() {
  return (await visit.reports()).filter(({ state }) => state === "waiting");
}

/** Whether all that is left to do is to send what was made before. */
async function hasUnsent() {
  const waiting = await waitingReports();
  return waiting.length > 0 && waiting.every(({ body }) => body);
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

/** Send each report whose time has come; reports that were made before are sent as they are. */
async function send() {
  await attempt(image(), label()); // as they are at the click
}

async function attempt(pixels, digit) {
  sending = true;
  find("send").disabled = true;
  let seconds = null;
  try {
    const { reports, drawn } = visit.terms, made = reports > 1 ? `${reports} reports` : "one report";
    if (!(await waitingReports()).length) {
      throw new Refused("done", `this browser has made its ${made} to this study. More would tell more about you`);
    }
    if (pixels === null || digit === null) {
      if (!(await hasUnsent())) throw new Error("Draw a digit and say which one it is.");
    }
    const compute = (weights) => softmaxGradient(weights, [{ features: featuresOf(pixels), label: digit }]).gradient;
    const done = await visit.report(compute);
    seconds = done.seconds;
    if (seconds !== null && drawn) {
      const next = Math.min(...(await waitingReports()).map(({ due }) => due));
      say(`Your report is sent after ${date(next)} if this page stays open. Otherwise come back then, and draw again.`);
    } else if (seconds !== null) {
      say("The round is not open. Your report is sent when it is, if this page stays open.");
    } else if (done.accepted) {
      say(`Thank you. These bytes were sent, and nothing else of your drawing. This browser has made its ${made}.`);
    } else {
      say("The round is over, and this browser does not report.", true);
    }
    setTimeout(() => showProgress().catch(() => undefined), 1500); // the service counts once a second
  } catch (error) {
    explain(error);
  } finally {
    await showSpent();
    sending = seconds !== null;
    unsent = await hasUnsent();
    show();
    if (sending) setTimeout(() => attempt(pixels, digit), Math.min(1000 * seconds, 2 ** 31 - 1));
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
  for (let digit = 0; digit < 10; digit++) {
    const box = document.createElement("label"), input = document.createElement("input");
    Object.assign(input, { type: "radio", name: "digit", value: String(digit) });
    box.append(input, String(digit));
    find("labels").append(box);
  }
  listen();
  clear();
  ledger = await Ledger.open(CAP);
  const here = new URL(".", location.href).href;
  visit = await Visit.begin(ledger, here, { invitation: invitation(), onsend: showSent });
  document.title = find("name").textContent = visit.terms.name;
  find("size").textContent = visit.terms.scheme.bytes;
  await showTerms();
  await showSpent();
  unsent = await hasUnsent();
  model = await visit.weights(await showProgress());
  show(); // from now on the button works
  if (unsent) say("This browser has made its report, and the service has not confirmed it: send it again.");
  await visit.join(); // now, and not when the report is sent: the issuer sees this browser's address
}

start().catch((error) => {
  if (!visit) find("progress").textContent = "";
  explain(error);
});

/** A visit to a study: docs/collect-protocol.md specifies every request. The service is never believed. */

import { base64url, fromBase64url, hex, joined, type Bytes } from "./bytes.js";
import type { Ledger, Part } from "./ledger.js";
import { checkKeys, encapsulate, MalformedAnswer, packRequest, readAnswer, UnsignedKeys } from "./oblivious.js";
import { checkWeights } from "./softmax.js";
import { checkAddress, Refused, Terms, type Report } from "./terms.js";
import { SIGNATURE_BYTES } from "./token.js";

/** The service did not accept a request: the next visit goes on from here. */
export class ServiceRefused extends Error {
  override name = "ServiceRefused";
  /** `status` is HTTP's, 0 if there was no answer; `code` and `advice` are the service's. */
  constructor(readonly status: number, text: string, readonly code = "", readonly advice = "") {
    super(text);
  }

  static of(status: number, body: Bytes): ServiceRefused {
    const said = parsed(body);
    const text = (name: string) => (typeof said[name] === "string" ? said[name] : "");
    return new ServiceRefused(status, text("reason") || `HTTP ${status}`, text("error"), text("what_to_do"));
  }
}

/** Computes the vector to report from the weights and the device's data. */
export type Compute = (weights: Float32Array) => ArrayLike<number> | Promise<ArrayLike<number>>;

export interface Round {
  readonly round: number;
  readonly state: "waiting" | "open" | "closing" | "ended";
  readonly reports: number;
}

/** What leaves the device. */
export interface Sent {
  readonly message: Bytes;
  readonly round: number;
  /** Bytes of the sealed request; 0 without a relay. */
  readonly sealed: number;
}

export interface Options {
  /** The study's id, if the app knows it; otherwise that in the invitation, if there is one. */
  readonly study?: string;
  readonly invitation?: string | null;
  /** Called before a report is sent, also again. */
  readonly onsend?: (sent: Sent) => void;
}

export interface Summary {
  readonly accepted: number;
  readonly waiting: number;
  readonly missed: number;
  /** Until the next visit; null if nothing is left to do. */
  readonly seconds: number | null;
}

/** The members of a JSON object; none if it is something else. */
function parsed(body: Bytes): Record<string, unknown> {
  try {
    return Object(JSON.parse(new TextDecoder().decode(body)));
  } catch {
    return {};
  }
}

/** One request, without cookies, caches and redirections. */
async function http(url: string, body: BodyInit | null = null, headers: Record<string, string> = {}): Promise<Bytes> {
  const fixed = { cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" } as const;
  const method = body === null ? "GET" : "POST", signal = AbortSignal.timeout(60000);
  let status = 0, content: Bytes;
  try {
    const response = await fetch(url, { ...fixed, method, headers, body, signal });
    status = response.status;
    content = new Uint8Array(await response.arrayBuffer());
  } catch {
    throw new ServiceRefused(0, `${new URL(url).host} cannot be reached`);
  }
  if (status !== 200) throw ServiceRefused.of(status, content);
  return content;
}

function namedIn(invitation: string): string | undefined {
  try {
    return hex(fromBase64url(invitation).subarray(0, 32));
  } catch {
    return undefined;
  }
}

export class Visit {
  #keys: Bytes | null = null;

  private constructor(
    readonly terms: Terms,
    readonly url: string,
    readonly ledger: Ledger,
    readonly options: Options,
  ) {}

  /**
   * Read a study, or what was stored of it at the first visit, with the rounds that were drawn then.
   *
   * Throws `Refused` for another study than the one that was named, or that this device has begun at this address.
   */
  static async begin(ledger: Ledger, url: string, options: Options = {}): Promise<Visit> {
    const base = checkAddress(url);
    const named = options.study ?? (options.invitation ? namedIn(options.invitation) : undefined);
    const begun = (part: Part) => part.url === base && part.reports.some((report) => report.state === "waiting");
    const part = (await ledger.parts()).find(begun);
    const terms = await Terms.of(part?.description ?? (await http(`${base}/study`)));
    if (named !== undefined && named !== terms.id) {
      throw new Refused("changed", `this is study ${terms.id}, not the one that was named`);
    }
    if (!part) await ledger.begin({ study: terms.id, url: base, description: terms.description, reports: terms.draw() });
    return new Visit(terms, base, ledger, options);
  }

  /** The reports of this device, with the rounds that it drew. */
  async reports(): Promise<Report[]> {
    const part = (await this.ledger.parts()).find(({ study }) => study === this.terms.id);
    return part!.reports;
  }

  /** Get blind tokens for all reports. A repeated request has the same bytes. */
  async join(): Promise<void> {
    const { id, key } = this.terms;
    const blinds = (await this.reports()).map(({ blind }) => blind);
    if (!blinds[0]) return;
    const requests = await Promise.all(blinds.map((blind) => key.request(id, blind!)));
    const headers: Record<string, string> = { "content-type": "application/private-token-request" };
    if (this.options.invitation) headers.authorization = `Bearer ${this.options.invitation}`;
    const answer = await http(`${this.url}/token`, joined(...requests), headers);
    const parts = blinds.map((_, i) => answer.subarray(i * SIGNATURE_BYTES, (i + 1) * SIGNATURE_BYTES));
    const tokens = await Promise.all(parts.map((part, i) => key.token(id, blinds[i]!, part))).catch((error) => {
      throw new Refused("changed", (error as Error).message);
    });
    await this.ledger.change(id, (reports) => {
      reports.forEach((report, i) => {
        if (report.blind) report.token = tokens[i];
        delete report.blind;
      });
    });
  }

  /** How far the study is. */
  async round(): Promise<Round> {
    const found = parsed(await this.#ask("/round")) as unknown as Round & { study: string };
    if (found.study !== this.terms.id) throw new Refused("changed", "the service now has another study than before");
    const most = this.terms.rounds - (found.state === "ended" ? 0 : 1);
    if (!Number.isSafeInteger(found.round) || found.round < 0 || found.round > most) {
      throw new ServiceRefused(0, `round = ${found.round} is not one of this study`);
    }
    return found;
  }

  /** The weights of a round's model, checked before they meet any data. */
  async weights(round: number): Promise<Float32Array> {
    const content = await this.#ask(`/model/${this.terms.id}/${round}`);
    const view = new DataView(content.buffer, content.byteOffset);
    if (content.length !== 4 * this.terms.scheme.dim) throw new Refused("study", "the model has a wrong length");
    const weights = Float32Array.from({ length: content.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
    try {
      checkWeights(weights);
    } catch (error) {
      throw new Refused("study", `the model is not used: ${(error as Error).message}`);
    }
    return weights;
  }

  /**
   * Send each report whose time has come. Call it again after `seconds`.
   *
   * A report is paid before `compute` is called. If that fails, zeros are reported: no refusal depends on data. A
   * report is stored before it is sent, and the same bytes are sent again until they are accepted.
   */
  async report(compute: Compute): Promise<Summary> {
    await this.join();
    const reports = await this.reports();
    for (let i = 0; i < reports.length; i++) {
      if (reports[i].state === "waiting" && reports[i].due <= Date.now() / 1000) await this.#report(i, compute);
    }
    return this.summary();
  }

  async summary(): Promise<Summary> {
    const reports = await this.reports(), count = (state: string) => reports.filter((each) => each.state === state).length;
    const waiting = reports.filter((each) => each.state === "waiting").map((each) => each.due - Date.now() / 1000);
    const soon = Math.max(1, (this.terms.at(1) - this.terms.at(0)) / 100);
    const seconds = waiting.length ? Math.max(soon, Math.min(...waiting)) : null;
    return { accepted: count("accepted"), waiting: waiting.length, missed: count("missed"), seconds };
  }

  async #report(number: number, compute: Compute): Promise<void> {
    const { id, scheme } = this.terms, { ledger } = this;
    let report = (await this.reports())[number];
    if (report.state === "waiting" && !report.body) { // another tab may have been faster
      const now = await this.round(), round = report.round ?? now.round;
      if (now.state === "ended" || now.round > round) await this.#finish(number, "missed", false);
      if (now.state !== "open" || now.round !== round) return;
      const weights = await this.weights(round);
      await ledger.pay(id, number, scheme.epsilon);
      const message = await this.#encoded(compute, weights, round);
      const body = { study: id, round, token: base64url(report.token!), report: base64url(message) };
      // Another tab may have stored its report, or sent it: that one counts, and this one never leaves.
      const stored = await ledger.change(id, (all) => {
        const each = all[number];
        if (each.state === "waiting" && !each.body) Object.assign(each, { round, body: JSON.stringify(body) });
      });
      report = stored[number];
    }
    if (report.state === "waiting") await this.#send(number, report);
  }

  /** The report of what `compute` returns, or of zeros if that fails: whether it fails may depend on data. */
  async #encoded(compute: Compute, weights: Float32Array, round: number): Promise<Bytes> {
    const { scheme } = this.terms, task = this.terms.task(round);
    try {
      return joined(scheme.encode(await compute(weights), task));
    } catch (error) {
      console.error("sqsgd: zero is reported, so that the server cannot tell:", error);
      return joined(scheme.encode(new Float32Array(scheme.dim), task));
    }
  }

  async #send(number: number, { body }: Report): Promise<void> {
    const show = (sealed: number) => {
      const { round, report } = JSON.parse(body!);
      this.options.onsend?.({ message: fromBase64url(report), round, sealed });
    };
    const end = await this.#ask("/report", body!, show).then(
      (answer) => parsed(answer).accepted === true,
      (error) => {
        if (!["token-spent", "round-over", "closed"].includes(error.code)) throw error;
        return error.code === "token-spent";
      },
    );
    await this.#finish(number, end ? "accepted" : "missed", true);
  }

  /** Nothing on this device tells afterwards which report was its own. `made`: whether there may be one. */
  async #finish(number: number, state: "accepted" | "missed", made: boolean): Promise<void> {
    await this.ledger.change(this.terms.id, (all) => {
      const { state: before, body, epsilon } = all[number];
      if (before !== "waiting" || (body && !made)) return; // another tab was faster
      all[number] = { state, round: null, due: 0, ...(epsilon === undefined ? {} : { epsilon }) };
    });
  }

  /** A request through the study's relay, or without one to the service. */
  async #ask(path: string, body: string | null = null, show?: (sealed: number) => void): Promise<Bytes> {
    const { relay, requestBytes, signer } = this.terms;
    if (relay === null) {
      show?.(0);
      return http(this.url + path, body, body === null ? {} : { "content-type": "application/json" });
    }
    try {
      this.#keys ??= await checkKeys(await http(relay), signer, Date.now() / 1000);
      const { capsule, open } = await encapsulate(this.#keys, packRequest(path, body, requestBytes));
      show?.(capsule.length);
      const sealed = await http(relay, capsule, { "content-type": "message/ohttp-req" });
      const answer = readAnswer(await open(sealed));
      if (answer.status !== 200) throw ServiceRefused.of(answer.status, answer.body);
      return answer.body;
    } catch (error) {
      this.#keys = null; // it may have been replaced
      if (error instanceof MalformedAnswer) throw new ServiceRefused(0, `the relay: ${error.message}`);
      if (error instanceof UnsignedKeys) throw new Refused("changed", `the relay's keys are not used: ${error.message}`);
      if ((error as Error).name === "NotSupportedError") {
        throw new Refused("browser", "this browser lacks X25519 or Ed25519, which relays need: use a newer one");
      }
      throw error;
    }
  }
}

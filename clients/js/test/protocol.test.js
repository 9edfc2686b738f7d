/** docs/collect-protocol.md: the vectors of Python and of the RFCs, damage, and what a device refuses or draws. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { ascii, base64url, fromBase64url, hex, joined, numberOf, random, unhex } from "../dist/bytes.js";
import { Encoder } from "../dist/encoder.js";
import { checkKeys, encapsulate, MalformedAnswer, packRequest, readAnswer, UnsignedKeys } from "../dist/oblivious.js";
import { checkAddress, Refused, Terms } from "../dist/terms.js";
import { TokenKey } from "../dist/token.js";
import { Ledger } from "../dist/ledger.js";

const path = new URL("../../../tests/collect/protocol-vectors.json", import.meta.url);
const vectors = JSON.parse(readFileSync(path, "utf8"));
const { study, token, report, oblivious, rfc9458, rfc9578 } = vectors;
const known = JSON.parse(study.description);
const terms = (changes = {}) => Terms.of(ascii(JSON.stringify({ ...known, ...changes })));

/** A device's key pair, which is random except in vectors; its public key is in the encapsulated request. */
async function given(secret, capsule) {
  const pkcs8 = unhex(`302e020100300506032b656e04220420${secret}`);
  return {
    privateKey: await crypto.subtle.importKey("pkcs8", pkcs8, "X25519", false, ["deriveBits"]),
    publicKey: await crypto.subtle.importKey("raw", unhex(capsule).slice(7, 39), "X25519", true, []),
  };
}

test("tokens are those of Python, and of RFC 9578 where the challenge is another one", async () => {
  const key = await TokenKey.of(token.token_key);
  assert.equal(hex(key.id), token.token_key_id);
  const blind = { nonce: unhex(token.nonce), salt: unhex(token.salt), r: BigInt(`0x${token.blind_r}`) };
  assert.equal(hex(await key.input(study.id, blind.nonce)), token.token_input);
  assert.equal(hex(await key.request(study.id, blind)), token.request);
  assert.equal(hex(await key.token(study.id, blind, unhex(token.answer))), token.token);
  for (const example of rfc9578) {
    const other = await TokenKey.of(base64url(unhex(example.pkS)));
    const input = unhex(example.token).slice(0, 98), r = BigInt(`0x${example.blind}`);
    other.input = async () => input;
    const secrets = { nonce: unhex(example.nonce), salt: unhex(example.salt), r };
    assert.equal(hex(await other.request("", secrets)), example.token_request);
    assert.equal(hex(await other.token("", secrets, unhex(example.token_response))), example.token);
  }
});

test("a signature of another key is refused, and so is another kind of key", async () => {
  const key = await TokenKey.of(token.token_key), blind = key.draw(), answer = unhex(token.answer);
  await assert.rejects(key.token(study.id, blind, answer), /does not sign/);
  for (const bad of [answer.slice(1), answer.map((byte, i) => byte ^ +(i === 100)), new Uint8Array(256)]) {
    const first = { nonce: unhex(token.nonce), salt: unhex(token.salt), r: BigInt(`0x${token.blind_r}`) };
    await assert.rejects(key.token(study.id, first, bad), /does not sign/);
  }
  const der = fromBase64url(token.token_key);
  for (const bad of [der.slice(1), joined(der, [0]), der.map((byte, i) => byte ^ (i === 81 ? 128 : 0)),
    der.map((byte, i) => byte ^ +(i === 30)), der.map((byte, i) => byte ^ +(i === der.length - 1))]) {
    await assert.rejects(TokenKey.of(base64url(bad)), /token_key/);
  }
});

test("blinds are drawn anew, have an inverse, and hide the token", async () => {
  const key = await TokenKey.of(token.token_key), one = key.draw(), two = { ...one, r: key.draw().r };
  assert.ok(one.r < key.modulus && one.r !== two.r);
  assert.notEqual(hex(await key.request(study.id, one)), hex(await key.request(study.id, two)));
});

test("encapsulated requests and answers are those of Python and of RFC 9458", async () => {
  const body = report.body;
  assert.equal(hex(packRequest("/report", body, known.request_bytes)), oblivious.inner_request);
  assert.equal(hex(packRequest("/round", null, known.request_bytes)), oblivious.get_round);
  assert.throws(() => packRequest("/report", "x".repeat(1000), 1024), /more than 1024/);
  const configuration = unhex(rfc9458.configuration);
  const keys = hex(joined([0, configuration.length], configuration));
  for (const example of [oblivious, { ...rfc9458, keys }]) {
    const pair = await given(example.ephemeral_private_key, example.encapsulated_request);
    const { capsule, open } = await encapsulate(unhex(example.keys), unhex(example.inner_request), pair);
    assert.equal(hex(capsule), example.encapsulated_request);
    const answer = unhex(example.encapsulated_answer);
    assert.equal(hex(await open(answer)), example.inner_answer);
    for (const bad of [answer.slice(1), answer.slice(0, 20), answer.map((byte, i) => byte ^ +(i === 20))]) {
      await assert.rejects(open(bad), MalformedAnswer);
    }
  }
  const { status, fields, body: said } = readAnswer(unhex(oblivious.inner_answer));
  assert.deepEqual([status, fields["content-type"]], [200, "application/json"]);
  assert.deepEqual(JSON.parse(new TextDecoder().decode(said)), { accepted: true, round: 2 });
  assert.equal(readAnswer(unhex(rfc9458.inner_answer)).status, 200);
});

test("all requests have one length, and a repeated one is another", async () => {
  const keys = unhex(oblivious.keys), inner = [packRequest("/round", null, 1024), packRequest("/report", "{}", 1024)];
  const capsules = await Promise.all([...inner, inner[0]].map(async (each) => (await encapsulate(keys, each)).capsule));
  assert.equal(new Set(capsules.map((capsule) => capsule.length)).size, 1);
  assert.equal(new Set(capsules.map(hex)).size, 3);
});

test("the first configuration that is understood is taken; damaged answers are refused", async () => {
  const keys = unhex(oblivious.keys), other = keys.map((byte, i) => (i === 4 ? 0x11 : byte));
  const { capsule } = await encapsulate(joined(other, keys), new Uint8Array(8));
  assert.equal(capsule[0], keys[2]);
  for (const bad of [other, keys.slice(0, -3), new Uint8Array(0)]) {
    await assert.rejects(encapsulate(bad, new Uint8Array(8)), MalformedAnswer);
  }
  for (const bad of ["", "00", "01", "0140", "0140c8ff", "0140c8000548", "0140c8000000ff", "ffff"]) {
    assert.throws(() => readAnswer(unhex(bad)), MalformedAnswer, bad);
  }
  assert.equal(readAnswer(unhex("0140660040c80001410000")).status, 200, "after an informational answer");
});

test("keys are those that the study signed, for as long as it says", async () => {
  const signed = unhex(oblivious.signed_keys), signer = unhex(known.gateway_key), until = oblivious.valid_until;
  assert.equal(hex(await checkKeys(signed, signer, until - 0.1)), oblivious.keys);
  assert.equal((await encapsulate(signed, new Uint8Array(8))).capsule[0], signed[2]); // others skip the signature
  for (let i = 0; i < signed.length; i++) {
    await assert.rejects(checkKeys(signed.map((byte, j) => byte ^ +(i === j)), signer, 0), UnsignedKeys);
  }
  for (const bad of [unhex(oblivious.keys), signed.slice(1), signed.slice(0, 60), new Uint8Array(0)]) {
    await assert.rejects(checkKeys(bad, signer, 0), /did not sign them.*another network/);
  }
  await assert.rejects(checkKeys(signed, unhex("00".repeat(31) + "01"), 0), UnsignedKeys);
  await assert.rejects(checkKeys(signed, signer, until), /expired at 2027-01-22T06:40: set this device's clock/);
});

test("a symbol and its request are those of Python", async () => {
  const found = await terms();
  assert.equal((await Terms.of(ascii(study.description))).id, study.id);
  const encoder = new Encoder(found.scheme.identity), task = found.task(report.task.round);
  assert.deepEqual(encoder.open(unhex(report.message), task), [[report.code]]);
  const values = { study: study.id, round: 2, token: base64url(unhex(token.token)), report: base64url(unhex(report.message)) };
  assert.equal(JSON.stringify(values), report.body);
});

test("a study that this client does not take part in is refused", async () => {
  const [name, , mechanism] = known.identity;
  for (const changes of [
    { format: 2 }, { dim: 21 }, { dim: 0 }, { rounds: 0 }, { rounds: 1.5 }, { reports: 1001 }, { seed: -1 }, { bound: 0 },
    { begins: "now" }, { round_seconds: 0 }, { visits: "twice" }, { request_bytes: 0 }, { fingerprint: "00000000" },
    { identity: [name, "rotate 3 shared=0 least=64", mechanism] }, { identity: ["fedsgd 20"] }, { identity: 7 },
    { relay: "http://relay.example" }, { relay: "nowhere" }, { relay: undefined }, { token_key: "AAAA" }, { token_key: 5 },
    { gateway_key: undefined }, { gateway_key: known.gateway_key.slice(2) },
  ]) {
    await assert.rejects(terms(changes), Refused, JSON.stringify(changes));
  }
  for (const bad of ["", "null", "[]", "{", "7"]) await assert.rejects(Terms.of(ascii(bad)), Refused);
  assert.throws(() => checkAddress("http://study.example"), Refused);
  assert.equal(checkAddress("http://127.0.0.1:80//"), "http://127.0.0.1:80");
});

test("rounds are uniform and independent, and so are the times within them", async () => {
  const { scheme } = await terms(), many = await terms({ reports: 1000, rounds: 5 });
  many.key.draw = () => ({}); // slow, and drawn above
  const drawn = Array.from({ length: 20 }, () => many.draw()).flat();
  const expected = drawn.length / 5, counts = [0, 1, 2, 3, 4].map((r) => drawn.filter(({ round }) => round === r).length);
  const chi2 = counts.reduce((sum, count) => sum + (count - expected) ** 2 / expected, 0);
  assert.ok(chi2 < 40, `${counts}: 4e-8 by chance`);
  const same = drawn.filter(({ round }, i) => i && round === drawn[i - 1].round).length;
  assert.ok(Math.abs(same - expected) < 6 * Math.sqrt(expected * 0.8));
  const places = drawn.map(({ round, due }) => (due - many.at(round)) / (many.at(1) - many.at(0)));
  assert.ok(places.every((place) => place >= 0 && place < 0.9001));
  assert.ok(Math.abs(places.reduce((sum, place) => sum + place, 0) / places.length - 0.45) < 0.012);
  assert.equal(scheme.epsilon, 4);
  const once = (await terms({ visits: "once" })).draw();
  assert.deepEqual([once[0].round, once[0].due], [null, 0]);
});

test("draws come from the platform's generator alone", async () => {
  const found = await terms(), real = crypto.getRandomValues;
  crypto.getRandomValues = (target) => target.fill(typeof target[0] === "bigint" ? 6n : 1);
  try {
    const [first] = found.draw();
    assert.deepEqual([first.round, numberOf(first.blind.nonce)], [2, numberOf(new Uint8Array(32).fill(1))]);
  } finally {
    delete crypto.getRandomValues;
  }
  assert.equal(crypto.getRandomValues, real);
});

test("where nothing can be stored, nothing begins, and the reason is in words", async () => {
  await assert.rejects(Ledger.open(8), (error) => error instanceof Refused && /keeps no record/.test(error.message));
  for (const cap of [0, NaN, 1e7]) await assert.rejects(Ledger.open(cap), RangeError);
});

test("texts and numbers of bytes", () => {
  const bytes = random(61);
  assert.deepEqual(fromBase64url(base64url(bytes)), bytes);
  assert.deepEqual(unhex(hex(bytes)), bytes);
  assert.match(base64url(Uint8Array.of(251, 255)), /^-_8$/);
});

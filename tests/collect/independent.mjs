// RFC 9458 over npm's @hpke/core and bhttp-js: asks a gateway for a path and prints status and body.
import { createDecipheriv, createHmac } from "node:crypto";

const [modules, gateway, path] = process.argv.slice(2);
const { Aes128Gcm, CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } = await import(`${modules}/@hpke/core/esm/mod.js`);
const { BHttpDecoder, BHttpEncoder } = await import(`${modules}/bhttp-js/esm/mod.js`);

const keys = Buffer.from(await (await fetch(gateway)).arrayBuffer());
const header = Buffer.from([keys[2], 0x00, 0x20, 0x00, 0x01, 0x00, 0x01]);
const kem = new DhkemX25519HkdfSha256();
const suite = new CipherSuite({ kem, kdf: new HkdfSha256(), aead: new Aes128Gcm() });
const recipientPublicKey = await kem.deserializePublicKey(keys.subarray(5, 37));
const info = Buffer.concat([Buffer.from("message/bhttp request\0"), header]);
const sender = await suite.createSenderContext({ recipientPublicKey, info });
const inner = await new BHttpEncoder().encodeRequest(new Request(`https://elsewhere.example${path}`));
const enc = Buffer.from(sender.enc);
const body = Buffer.concat([header, enc, Buffer.from(await sender.seal(inner))]);

const headers = { "content-type": "message/ohttp-req" };
const response = await fetch(gateway, { method: "POST", body, headers });
const sealed = Buffer.from(await response.arrayBuffer());
const nonce = sealed.subarray(0, 16);
const secret = Buffer.from(await sender.export(Buffer.from("message/bhttp response"), 16));
const prk = createHmac("sha256", Buffer.concat([enc, nonce])).update(secret).digest();
const expand = (label, size) => createHmac("sha256", prk).update(`${label}\x01`).digest().subarray(0, size);
const cipher = createDecipheriv("aes-128-gcm", expand("key", 16), expand("nonce", 12));
cipher.setAuthTag(sealed.subarray(-16));
const opened = Buffer.concat([cipher.update(sealed.subarray(16, -16)), cipher.final()]);
const answer = new BHttpDecoder().decodeResponse(opened);
console.log(JSON.stringify({ status: answer.status, body: await answer.text() }));

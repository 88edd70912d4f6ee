// The life of a tunnel, by a client whose types were generated from the served description:
//
//     node smoke.js http://127.0.0.1:8080/v2 ctk_… 127.0.0.1:9180
//
// The last is where a service listens, for the tunnel to lead to; the host's own health will do.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { setTimeout as wait } from "node:timers/promises";
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

type Operation = components["schemas"]["Operation"];

const POLLS = 100;
const [baseUrl = "", key = "", service = ""] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });

/** The data of an answer; there is none with a problem. */
function data<T>(answer: { data?: { data: T }; error?: { code: string; detail: string } }): T {
  assert(answer.data, `${answer.error?.code}: ${answer.error?.detail}`);
  return answer.data.data;
}

const newEffect = () => ({ "Idempotency-Key": randomUUID() });

async function ended(id: string): Promise<Operation> {
  for (let poll = 0; poll < POLLS; poll++) {
    const operation = data(await client.GET("/operations/{operation_id}", { params: { path: { operation_id: id } } }));
    if (operation.finished_at !== null) return operation;
    await wait(100);
  }
  assert.fail(`operation ${id} has not ended`);
}

const [device] = data(await client.GET("/devices", { params: { query: { limit: 1 } } }));
assert(device, "there is no device");

const [local_host = "", local_port] = service.split(":");
const created = data(
  await client.POST("/tunnels", {
    params: { header: newEffect() },
    body: { name: "smoke", local_host, local_port: Number(local_port) },
  }),
);
assert.equal(created.protocol, "tcp");
const path = { tunnel_id: created.id };

const started = data(
  await client.POST("/tunnels/{tunnel_id}/actions/start", {
    params: { path, header: newEffect() },
    body: { device_id: device.id },
  }),
);
const start = await ended(started.id);
assert.equal(start.status, "succeeded", `${start.error?.code}: ${start.error?.detail}`);

const running = data(await client.GET("/tunnels/{tunnel_id}", { params: { path } }));
assert.deepEqual(running.runtime, { running: true, device_id: device.id });
const visit = await fetch(`http://${running.public_address.hostname}:${running.public_address.port}/healthz`);
assert.equal(visit.status, 200);

const deleted = data(await client.DELETE("/tunnels/{tunnel_id}", { params: { path, header: newEffect() } }));
assert.deepEqual(deleted, { id: created.id, deleted: true });

const gone = await client.GET("/tunnels/{tunnel_id}", { params: { path } });
assert.equal(gone.error?.code, "not_found");

console.log(`tunnel ${created.id} was created, started on ${device.name}, and deleted`);

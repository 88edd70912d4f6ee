-- Webhook endpoints, the events that they are sent, and every attempt to send one.

CREATE TABLE webhooks (
    id          BLOB    NOT NULL PRIMARY KEY,
    scope_id    BLOB    NOT NULL REFERENCES scopes (id),
    url         TEXT    NOT NULL,
    -- Event kinds, separated by spaces.
    events      TEXT    NOT NULL,
    description TEXT,
    status      TEXT    NOT NULL CHECK (status IN ('enabled', 'disabled')),
    -- Encrypted: it is shown once, and needed for every signature.
    secret      BLOB    NOT NULL,
    -- How the attempt that ended last came out, and when.
    last_status TEXT,
    last_at     INTEGER,
    -- When the next of its deliveries is due, or, while as many as may be are under way, when they
    -- must have ended. A courier looks here alone: however much waits for an endpoint, it is a row.
    due_at      INTEGER,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
) STRICT;

CREATE INDEX webhooks_by_scope ON webhooks (scope_id, created_at, id);
CREATE INDEX webhooks_due ON webhooks (due_at) WHERE due_at IS NOT NULL;

-- Events that some endpoint is to hear of, written in the transaction that brought them about.
CREATE TABLE events (
    id         BLOB    NOT NULL PRIMARY KEY,
    scope_id   BLOB    NOT NULL REFERENCES scopes (id),
    kind       TEXT    NOT NULL,
    -- JSON, as it is signed and sent: bytes, so that nothing changes them.
    body       BLOB    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX events_by_age ON events (created_at);

-- One attempt to send one event to one endpoint. A pending one is still to be made.
CREATE TABLE deliveries (
    id              BLOB    NOT NULL PRIMARY KEY,
    webhook_id      BLOB    NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    event_id        BLOB    NOT NULL REFERENCES events (id),
    attempt         INTEGER NOT NULL,
    status          TEXT    NOT NULL CHECK (status IN ('pending', 'succeeded', 'failed', 'canceled')),
    -- When it is due; while it is under way, when it comes due again because nobody settled it.
    run_at          INTEGER NOT NULL,
    in_flight       INTEGER NOT NULL,
    -- How often it was taken up: whoever took it up before settles nothing.
    lease           INTEGER NOT NULL,
    status_code     INTEGER,
    error           TEXT,
    duration_ms     INTEGER,
    next_attempt_at INTEGER,
    created_at      INTEGER NOT NULL,
    finished_at     INTEGER
) STRICT;

CREATE INDEX deliveries_by_webhook ON deliveries (webhook_id, created_at, id);
CREATE INDEX deliveries_by_event ON deliveries (event_id);
CREATE INDEX deliveries_pending ON deliveries (webhook_id, run_at) WHERE status = 'pending';
CREATE INDEX deliveries_in_flight ON deliveries (webhook_id) WHERE in_flight = TRUE;
CREATE INDEX deliveries_finished ON deliveries (finished_at) WHERE finished_at IS NOT NULL;

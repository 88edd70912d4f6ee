-- Devices, how they enrol, and where they are connected.

CREATE TABLE devices (
    id               UUID    NOT NULL PRIMARY KEY,
    scope_id         UUID    NOT NULL REFERENCES scopes (id),
    owner_id         UUID    NOT NULL REFERENCES accounts (id),
    name             TEXT,
    platform         TEXT,
    version          TEXT,
    -- Capabilities, separated by spaces.
    capabilities     TEXT    NOT NULL,
    -- Ed25519; the device alone has the other half.
    public_key       BYTEA   NOT NULL,
    remote_control   BOOLEAN NOT NULL,
    -- Raised by everything that turns remote control off: a consent to an older one is void.
    consent_revision BIGINT  NOT NULL,
    created_at       BIGINT  NOT NULL
);

CREATE INDEX devices_by_scope ON devices (scope_id, created_at, id);
CREATE INDEX devices_by_owner ON devices (owner_id);

-- A table of its own, for it changes all the time.
CREATE TABLE device_presence (
    device_id    UUID    NOT NULL PRIMARY KEY REFERENCES devices (id) ON DELETE CASCADE,
    -- The connection that counts; a newer one has a higher number.
    epoch        BIGINT  NOT NULL,
    -- The host that holds the connection, and the agent's process at its other end.
    host_id      UUID,
    boot_id      UUID,
    online       BOOLEAN NOT NULL,
    last_seen_at BIGINT  NOT NULL
);

CREATE INDEX device_presence_online ON device_presence (last_seen_at) WHERE online = TRUE;

CREATE TABLE device_codes (
    -- SHA-256: the code itself is shown once.
    hash       BYTEA   NOT NULL PRIMARY KEY,
    account_id UUID    NOT NULL REFERENCES accounts (id),
    scope_id   UUID    NOT NULL REFERENCES scopes (id),
    expires_at BIGINT  NOT NULL
);

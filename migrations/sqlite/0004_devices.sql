-- Devices, how they enrol, and where they are connected.

CREATE TABLE devices (
    id               BLOB    NOT NULL PRIMARY KEY,
    scope_id         BLOB    NOT NULL REFERENCES scopes (id),
    owner_id         BLOB    NOT NULL REFERENCES accounts (id),
    name             TEXT,
    platform         TEXT,
    version          TEXT,
    -- Capabilities, separated by spaces.
    capabilities     TEXT    NOT NULL,
    -- Ed25519; the device alone has the other half.
    public_key       BLOB    NOT NULL,
    remote_control   INTEGER NOT NULL,
    -- Raised by everything that turns remote control off: a consent to an older one is void.
    consent_revision INTEGER NOT NULL,
    created_at       INTEGER NOT NULL
) STRICT;

CREATE INDEX devices_by_scope ON devices (scope_id, created_at, id);
CREATE INDEX devices_by_owner ON devices (owner_id);

-- A table of its own, for it changes all the time.
CREATE TABLE device_presence (
    device_id    BLOB    NOT NULL PRIMARY KEY REFERENCES devices (id) ON DELETE CASCADE,
    -- The connection that counts; a newer one has a higher number.
    epoch        INTEGER NOT NULL,
    -- The host that holds the connection, and the agent's process at its other end.
    host_id      BLOB,
    boot_id      BLOB,
    online       INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL
) STRICT;

CREATE INDEX device_presence_online ON device_presence (last_seen_at) WHERE online = TRUE;

CREATE TABLE device_codes (
    -- SHA-256: the code itself is shown once.
    hash       BLOB    NOT NULL PRIMARY KEY,
    account_id BLOB    NOT NULL REFERENCES accounts (id),
    scope_id   BLOB    NOT NULL REFERENCES scopes (id),
    expires_at INTEGER NOT NULL
) STRICT;

-- What a command at a device may do, and the tunnels that end with it.

-- The credential is an API key or a device.
ALTER TABLE idempotency RENAME TO idempotency_of_keys;
CREATE TABLE idempotency (
    credential_id UUID   NOT NULL,
    key           TEXT   NOT NULL,
    -- HMAC-SHA256 of method, path, query and body.
    fingerprint   BYTEA  NOT NULL,
    status        BIGINT NOT NULL,
    -- The body, encrypted: it may hold a secret that is shown once.
    answer        BYTEA  NOT NULL,
    expires_at    BIGINT NOT NULL,
    PRIMARY KEY (credential_id, key)
);
INSERT INTO idempotency SELECT api_key_id, key, fingerprint, status, answer, expires_at FROM idempotency_of_keys;
DROP TABLE idempotency_of_keys;
CREATE INDEX idempotency_by_expiry ON idempotency (expires_at);

-- Whether commands at the device may create tunnels. Devices that enrolled before may not.
ALTER TABLE devices ADD COLUMN may_create BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE device_codes ADD COLUMN may_create BOOLEAN NOT NULL DEFAULT FALSE;

-- Tunnels that are deleted when the command that made them has ended.
CREATE TABLE temporary_tunnels (
    tunnel_id UUID   NOT NULL PRIMARY KEY REFERENCES tunnels (id) ON DELETE CASCADE,
    -- No reference: the tunnels of a removed device are still to be deleted.
    device_id UUID   NOT NULL,
    -- When to look whether it still runs.
    check_at  BIGINT NOT NULL
);

CREATE INDEX temporary_tunnels_due ON temporary_tunnels (check_at);

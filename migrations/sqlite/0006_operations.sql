-- Remote actions. The table is the queue and the truth; who is woken for it is a matter of speed.

CREATE TABLE operations (
    id          BLOB    NOT NULL PRIMARY KEY,
    scope_id    BLOB    NOT NULL REFERENCES scopes (id),
    account_id  BLOB    NOT NULL REFERENCES accounts (id),
    action      TEXT    NOT NULL CHECK (action IN ('start', 'stop', 'restart', 'stop_all', 'restart_agent')),
    status      TEXT    NOT NULL CHECK (status IN ('queued', 'claimed', 'running', 'succeeded', 'failed', 'expired', 'canceled')),
    device_id   BLOB    NOT NULL,
    tunnel_id   BLOB,
    -- The device that a handoff takes the tunnel from.
    yields_id   BLOB,
    -- The session that the operation began or ended.
    session_id  BLOB,
    -- JSON.
    result      TEXT,
    error       TEXT,
    created_at  INTEGER NOT NULL,
    claimed_at  INTEGER,
    started_at  INTEGER,
    finished_at INTEGER,
    expires_at  INTEGER NOT NULL
) STRICT;

CREATE INDEX operations_by_scope ON operations (scope_id, created_at, id);
CREATE INDEX operations_active ON operations (device_id) WHERE status IN ('queued', 'claimed', 'running');
CREATE INDEX operations_finished ON operations (finished_at) WHERE finished_at IS NOT NULL;

-- One active operation a tunnel, one of the whole-device actions a device.
CREATE UNIQUE INDEX operations_one_per_tunnel ON operations (tunnel_id)
    WHERE tunnel_id IS NOT NULL AND status IN ('queued', 'claimed', 'running');
CREATE UNIQUE INDEX operations_one_per_device ON operations (device_id)
    WHERE tunnel_id IS NULL AND status IN ('queued', 'claimed', 'running');

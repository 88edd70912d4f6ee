-- Tunnels, the public addresses they hold, and their runs.

CREATE TABLE tunnels (
    id                 BLOB    NOT NULL PRIMARY KEY,
    scope_id           BLOB    NOT NULL REFERENCES scopes (id),
    created_by         BLOB    NOT NULL REFERENCES accounts (id),
    name               TEXT    NOT NULL,
    protocol           TEXT    NOT NULL CHECK (protocol IN ('tcp', 'udp', 'both', 'http')),
    local_host         TEXT    NOT NULL,
    local_port         INTEGER NOT NULL,
    remote_port        INTEGER NOT NULL,
    node_id            BLOB    NOT NULL REFERENCES nodes (id),
    domain_id          BLOB    NOT NULL REFERENCES platform_domains (id),
    subdomain          TEXT,
    region             TEXT,
    country            TEXT,
    preset_id          BLOB,
    https              INTEGER NOT NULL,
    basic_auth         INTEGER NOT NULL,
    basic_auth_user    TEXT,
    -- Argon2id, as a PHC string.
    basic_auth_hash    TEXT,
    idle_timeout       INTEGER,
    buffer_size        INTEGER NOT NULL,
    pro_network        INTEGER NOT NULL,
    -- The number of the newest run. A node serves no older one.
    epoch              INTEGER NOT NULL,
    -- The device that is to run it whenever it can: set by a start, cleared by a stop.
    wanted_on          BLOB,
    -- Why the last start failed, until one succeeds.
    start_error        TEXT,
    created_at         INTEGER NOT NULL,
    updated_at         INTEGER NOT NULL,
    CONSTRAINT tunnels_subdomain UNIQUE (domain_id, subdomain)
) STRICT;

CREATE INDEX tunnels_by_scope ON tunnels (scope_id, created_at, id);
CREATE INDEX tunnels_by_wanted ON tunnels (wanted_on) WHERE wanted_on IS NOT NULL;

-- The devices that a tunnel may run on; none: any of its scope.
CREATE TABLE tunnel_devices (
    tunnel_id BLOB NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE,
    device_id BLOB NOT NULL REFERENCES devices (id) ON DELETE CASCADE,
    PRIMARY KEY (tunnel_id, device_id)
) STRICT;

CREATE INDEX tunnel_devices_by_device ON tunnel_devices (device_id);

CREATE TABLE extra_ports (
    id          BLOB    NOT NULL PRIMARY KEY,
    tunnel_id   BLOB    NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE,
    local_port  INTEGER NOT NULL,
    remote_port INTEGER NOT NULL,
    protocol    TEXT    NOT NULL CHECK (protocol IN ('tcp', 'udp', 'both', 'http')),
    label       TEXT,
    created_at  INTEGER NOT NULL
) STRICT;

CREATE INDEX extra_ports_by_tunnel ON extra_ports (tunnel_id);

-- Every public port that is given away.
CREATE TABLE node_ports (
    node_id   BLOB    NOT NULL REFERENCES nodes (id),
    port      INTEGER NOT NULL,
    transport TEXT    NOT NULL CHECK (transport IN ('tcp', 'udp')),
    tunnel_id BLOB    NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE,
    PRIMARY KEY (node_id, port, transport)
) STRICT;

CREATE INDEX node_ports_by_tunnel ON node_ports (tunnel_id);

-- One unbroken run of a tunnel on a device. An open one is the lease: the index below is what
-- keeps a tunnel on one device at a time. A session outlives its tunnel, as a record.
CREATE TABLE sessions (
    id           BLOB    NOT NULL PRIMARY KEY,
    tunnel_id    BLOB    NOT NULL,
    scope_id     BLOB    NOT NULL REFERENCES scopes (id),
    device_id    BLOB    NOT NULL,
    node_id      BLOB    NOT NULL REFERENCES nodes (id),
    epoch        INTEGER NOT NULL,
    -- The agent's process that holds the lease.
    boot_id      BLOB    NOT NULL,
    -- The local target that the device agreed to.
    local_host   TEXT    NOT NULL,
    local_port   INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    -- When the agent first stood ready for visitors.
    ready_at     INTEGER,
    -- What is wrong with the local target, while something is.
    target_error TEXT,
    lease_until  INTEGER NOT NULL,
    ended_at     INTEGER,
    end_reason   TEXT,
    bytes_in     INTEGER NOT NULL,
    bytes_out    INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX sessions_open ON sessions (tunnel_id) WHERE ended_at IS NULL;
CREATE INDEX sessions_by_tunnel ON sessions (tunnel_id, started_at, id);
CREATE INDEX sessions_open_by_device ON sessions (device_id) WHERE ended_at IS NULL;
CREATE INDEX sessions_open_by_node ON sessions (node_id) WHERE ended_at IS NULL;

-- Payload by tunnel and UTC day (days since 1970).
CREATE TABLE usage_days (
    tunnel_id BLOB    NOT NULL,
    day       INTEGER NOT NULL,
    scope_id  BLOB    NOT NULL REFERENCES scopes (id),
    bytes_in  INTEGER NOT NULL,
    bytes_out INTEGER NOT NULL,
    PRIMARY KEY (tunnel_id, day)
) STRICT;

CREATE INDEX usage_days_by_scope ON usage_days (scope_id, day);

-- Tunnels, the public addresses they hold, and their runs.

CREATE TABLE tunnels (
    id                 UUID    NOT NULL PRIMARY KEY,
    scope_id           UUID    NOT NULL REFERENCES scopes (id),
    created_by         UUID    NOT NULL REFERENCES accounts (id),
    name               TEXT    NOT NULL,
    protocol           TEXT    NOT NULL CHECK (protocol IN ('tcp', 'udp', 'both', 'http')),
    local_host         TEXT    NOT NULL,
    local_port         BIGINT  NOT NULL,
    remote_port        BIGINT  NOT NULL,
    node_id            UUID    NOT NULL REFERENCES nodes (id),
    domain_id          UUID    NOT NULL REFERENCES platform_domains (id),
    subdomain          TEXT,
    region             TEXT,
    country            TEXT,
    preset_id          UUID,
    https              BOOLEAN NOT NULL,
    basic_auth         BOOLEAN NOT NULL,
    basic_auth_user    TEXT,
    -- Argon2id, as a PHC string.
    basic_auth_hash    TEXT,
    idle_timeout       BIGINT,
    buffer_size        BIGINT  NOT NULL,
    pro_network        BOOLEAN NOT NULL,
    -- The number of the newest run. A node serves no older one.
    epoch              BIGINT  NOT NULL,
    -- The device that is to run it whenever it can: set by a start, cleared by a stop.
    wanted_on          UUID,
    -- Why the last start failed, until one succeeds.
    start_error        TEXT,
    created_at         BIGINT  NOT NULL,
    updated_at         BIGINT  NOT NULL,
    CONSTRAINT tunnels_subdomain UNIQUE (domain_id, subdomain)
);

CREATE INDEX tunnels_by_scope ON tunnels (scope_id, created_at, id);
CREATE INDEX tunnels_by_wanted ON tunnels (wanted_on) WHERE wanted_on IS NOT NULL;

-- The devices that a tunnel may run on; none: any of its scope.
CREATE TABLE tunnel_devices (
    tunnel_id UUID    NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE,
    device_id UUID    NOT NULL REFERENCES devices (id) ON DELETE CASCADE,
    PRIMARY KEY (tunnel_id, device_id)
);

CREATE INDEX tunnel_devices_by_device ON tunnel_devices (device_id);

CREATE TABLE extra_ports (
    id          UUID    NOT NULL PRIMARY KEY,
    tunnel_id   UUID    NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE,
    local_port  BIGINT  NOT NULL,
    remote_port BIGINT  NOT NULL,
    protocol    TEXT    NOT NULL CHECK (protocol IN ('tcp', 'udp', 'both', 'http')),
    label       TEXT,
    created_at  BIGINT  NOT NULL
);

CREATE INDEX extra_ports_by_tunnel ON extra_ports (tunnel_id);

-- Every public port that is given away.
CREATE TABLE node_ports (
    node_id   UUID    NOT NULL REFERENCES nodes (id),
    port      BIGINT  NOT NULL,
    transport TEXT    NOT NULL CHECK (transport IN ('tcp', 'udp')),
    tunnel_id UUID    NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE,
    PRIMARY KEY (node_id, port, transport)
);

CREATE INDEX node_ports_by_tunnel ON node_ports (tunnel_id);

-- One unbroken run of a tunnel on a device. An open one is the lease: the index below is what
-- keeps a tunnel on one device at a time. A session outlives its tunnel, as a record.
CREATE TABLE sessions (
    id           UUID    NOT NULL PRIMARY KEY,
    tunnel_id    UUID    NOT NULL,
    scope_id     UUID    NOT NULL REFERENCES scopes (id),
    device_id    UUID    NOT NULL,
    node_id      UUID    NOT NULL REFERENCES nodes (id),
    epoch        BIGINT  NOT NULL,
    -- The agent's process that holds the lease.
    boot_id      UUID    NOT NULL,
    -- The local target that the device agreed to.
    local_host   TEXT    NOT NULL,
    local_port   BIGINT  NOT NULL,
    started_at   BIGINT  NOT NULL,
    -- When the agent first stood ready for visitors.
    ready_at     BIGINT,
    -- What is wrong with the local target, while something is.
    target_error TEXT,
    lease_until  BIGINT  NOT NULL,
    ended_at     BIGINT,
    end_reason   TEXT,
    bytes_in     BIGINT  NOT NULL,
    bytes_out    BIGINT  NOT NULL
);

CREATE UNIQUE INDEX sessions_open ON sessions (tunnel_id) WHERE ended_at IS NULL;
CREATE INDEX sessions_by_tunnel ON sessions (tunnel_id, started_at, id);
CREATE INDEX sessions_open_by_device ON sessions (device_id) WHERE ended_at IS NULL;
CREATE INDEX sessions_open_by_node ON sessions (node_id) WHERE ended_at IS NULL;

-- Payload by tunnel and UTC day (days since 1970).
CREATE TABLE usage_days (
    tunnel_id UUID    NOT NULL,
    day       BIGINT  NOT NULL,
    scope_id  UUID    NOT NULL REFERENCES scopes (id),
    bytes_in  BIGINT  NOT NULL,
    bytes_out BIGINT  NOT NULL,
    PRIMARY KEY (tunnel_id, day)
);

CREATE INDEX usage_days_by_scope ON usage_days (scope_id, day);

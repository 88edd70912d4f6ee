-- How visitors reach a tunnel, and which of them may: extra ports, firewall, countries, names, moves.

-- Whether the node knows which country an address belongs to.
ALTER TABLE nodes ADD COLUMN knows_countries INTEGER NOT NULL DEFAULT FALSE;

-- Raised with every replacement of its rules, for the node to notice.
ALTER TABLE tunnels ADD COLUMN rules_version INTEGER NOT NULL DEFAULT 0;
-- On its way to another node, until it stands ready there.
ALTER TABLE tunnels ADD COLUMN moving INTEGER NOT NULL DEFAULT FALSE;

-- The extra ports that the device of a session agreed to, and what they lead to there.
CREATE TABLE session_ports (
    session_id BLOB    NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    port_id    BLOB    NOT NULL,
    local_port INTEGER NOT NULL,
    PRIMARY KEY (session_id, port_id)
) STRICT;

CREATE TABLE firewall_rules (
    id          BLOB    NOT NULL PRIMARY KEY,
    tunnel_id   BLOB    NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE,
    position    INTEGER NOT NULL,
    rule_type   TEXT    NOT NULL CHECK (rule_type IN ('whitelist', 'blacklist')),
    -- One of the two: an address, or a range with all host bits zero.
    ip_address  TEXT,
    ip_cidr     TEXT,
    description TEXT,
    created_at  INTEGER NOT NULL
) STRICT;

CREATE INDEX firewall_rules_by_tunnel ON firewall_rules (tunnel_id, position);

CREATE TABLE geoip_rules (
    tunnel_id    BLOB    NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE,
    country_code TEXT    NOT NULL,
    position     INTEGER NOT NULL,
    action       TEXT    NOT NULL CHECK (action IN ('allow', 'block')),
    PRIMARY KEY (tunnel_id, country_code)
) STRICT;

-- Names of their owners' own for http tunnels: the one that is assigned, and the one that was last
-- looked up.
CREATE TABLE custom_domains (
    tunnel_id       BLOB    NOT NULL REFERENCES tunnels (id) ON DELETE CASCADE,
    domain          TEXT    NOT NULL,
    status          TEXT    NOT NULL CHECK (status IN ('pending', 'verified', 'failed')),
    assigned        INTEGER NOT NULL,
    verified_at     INTEGER,
    last_checked_at INTEGER NOT NULL,
    -- Daily checks in a row that did not find the CNAME.
    missed          INTEGER NOT NULL,
    error_code      TEXT,
    error_detail    TEXT,
    updated_at      INTEGER NOT NULL,
    PRIMARY KEY (tunnel_id, domain)
) STRICT;

CREATE UNIQUE INDEX custom_domains_assigned ON custom_domains (domain) WHERE assigned = TRUE;
CREATE INDEX custom_domains_by_check ON custom_domains (last_checked_at) WHERE status <> 'pending';

-- What the platform offers: nodes, domains, presets.

CREATE TABLE nodes (
    id          BLOB    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL CONSTRAINT nodes_name UNIQUE,
    hostname    TEXT    NOT NULL,
    region      TEXT    NOT NULL,
    country     TEXT    NOT NULL,
    region_flag TEXT,
    status      TEXT    NOT NULL CHECK (status IN ('online', 'degraded', 'maintenance', 'offline')),
    pro_only    INTEGER NOT NULL,
    -- The public ports that it gives away, both included.
    first_port  INTEGER NOT NULL,
    last_port   INTEGER NOT NULL,
    created_at  INTEGER NOT NULL
) STRICT;

CREATE TABLE platform_domains (
    id         BLOB    NOT NULL PRIMARY KEY,
    domain     TEXT    NOT NULL CONSTRAINT platform_domains_domain UNIQUE,
    is_default INTEGER NOT NULL,
    region     TEXT,
    pro_only   INTEGER NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE presets (
    id          BLOB    NOT NULL PRIMARY KEY,
    slug        TEXT    NOT NULL CONSTRAINT presets_slug UNIQUE,
    name        TEXT    NOT NULL,
    category    TEXT    NOT NULL CHECK (category IN ('game', 'app')),
    protocol    TEXT    NOT NULL CHECK (protocol IN ('tcp', 'udp', 'both', 'http')),
    local_port  INTEGER NOT NULL,
    -- JSON: [{"local_port", "label", "protocol"}].
    extra_ports TEXT    NOT NULL,
    icon_url    TEXT
) STRICT;

INSERT INTO presets (id, slug, name, category, protocol, local_port, extra_ports) VALUES
    (X'0191a0c4000070008000000000000001', 'minecraft-java', 'Minecraft: Java Edition', 'game', 'tcp', 25565, '[]'),
    (X'0191a0c4000070008000000000000002', 'minecraft-bedrock', 'Minecraft: Bedrock Edition', 'game', 'udp', 19132, '[]'),
    (X'0191a0c4000070008000000000000003', 'valheim', 'Valheim', 'game', 'udp', 2456, '[{"local_port":2457,"label":"query","protocol":"udp"}]'),
    (X'0191a0c4000070008000000000000004', 'terraria', 'Terraria', 'game', 'tcp', 7777, '[]'),
    (X'0191a0c4000070008000000000000005', 'rust', 'Rust', 'game', 'udp', 28015, '[{"local_port":28016,"label":"rcon","protocol":"tcp"}]'),
    (X'0191a0c4000070008000000000000006', '7-days-to-die', '7 Days to Die', 'game', 'both', 26900, '[]'),
    (X'0191a0c4000070008000000000000007', 'palworld', 'Palworld', 'game', 'udp', 8211, '[]'),
    (X'0191a0c4000070008000000000000008', 'ssh', 'SSH', 'app', 'tcp', 22, '[]'),
    (X'0191a0c4000070008000000000000009', 'rdp', 'Remote Desktop', 'app', 'both', 3389, '[]'),
    (X'0191a0c400007000800000000000000a', 'http', 'Web server', 'app', 'http', 8080, '[]');

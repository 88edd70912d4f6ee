-- What the platform offers: nodes, domains, presets.

CREATE TABLE nodes (
    id          UUID    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL CONSTRAINT nodes_name UNIQUE,
    hostname    TEXT    NOT NULL,
    region      TEXT    NOT NULL,
    country     TEXT    NOT NULL,
    region_flag TEXT,
    status      TEXT    NOT NULL CHECK (status IN ('online', 'degraded', 'maintenance', 'offline')),
    pro_only    BOOLEAN NOT NULL,
    -- The public ports that it gives away, both included.
    first_port  BIGINT  NOT NULL,
    last_port   BIGINT  NOT NULL,
    created_at  BIGINT  NOT NULL
);

CREATE TABLE platform_domains (
    id         UUID    NOT NULL PRIMARY KEY,
    domain     TEXT    NOT NULL CONSTRAINT platform_domains_domain UNIQUE,
    is_default BOOLEAN NOT NULL,
    region     TEXT,
    pro_only   BOOLEAN NOT NULL,
    created_at BIGINT  NOT NULL
);

CREATE TABLE presets (
    id          UUID    NOT NULL PRIMARY KEY,
    slug        TEXT    NOT NULL CONSTRAINT presets_slug UNIQUE,
    name        TEXT    NOT NULL,
    category    TEXT    NOT NULL CHECK (category IN ('game', 'app')),
    protocol    TEXT    NOT NULL CHECK (protocol IN ('tcp', 'udp', 'both', 'http')),
    local_port  BIGINT  NOT NULL,
    -- JSON: [{"local_port", "label", "protocol"}].
    extra_ports TEXT    NOT NULL,
    icon_url    TEXT
);

INSERT INTO presets (id, slug, name, category, protocol, local_port, extra_ports) VALUES
    ('0191a0c4-0000-7000-8000-000000000001', 'minecraft-java', 'Minecraft: Java Edition', 'game', 'tcp', 25565, '[]'),
    ('0191a0c4-0000-7000-8000-000000000002', 'minecraft-bedrock', 'Minecraft: Bedrock Edition', 'game', 'udp', 19132, '[]'),
    ('0191a0c4-0000-7000-8000-000000000003', 'valheim', 'Valheim', 'game', 'udp', 2456, '[{"local_port":2457,"label":"query","protocol":"udp"}]'),
    ('0191a0c4-0000-7000-8000-000000000004', 'terraria', 'Terraria', 'game', 'tcp', 7777, '[]'),
    ('0191a0c4-0000-7000-8000-000000000005', 'rust', 'Rust', 'game', 'udp', 28015, '[{"local_port":28016,"label":"rcon","protocol":"tcp"}]'),
    ('0191a0c4-0000-7000-8000-000000000006', '7-days-to-die', '7 Days to Die', 'game', 'both', 26900, '[]'),
    ('0191a0c4-0000-7000-8000-000000000007', 'palworld', 'Palworld', 'game', 'udp', 8211, '[]'),
    ('0191a0c4-0000-7000-8000-000000000008', 'ssh', 'SSH', 'app', 'tcp', 22, '[]'),
    ('0191a0c4-0000-7000-8000-000000000009', 'rdp', 'Remote Desktop', 'app', 'both', 3389, '[]'),
    ('0191a0c4-0000-7000-8000-00000000000a', 'http', 'Web server', 'app', 'http', 8080, '[]');

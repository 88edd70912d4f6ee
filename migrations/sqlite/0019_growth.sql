-- Reads and changes whose cost does not depend on how much there is.

-- The tunnels on each node, kept by triggers. A node's number is the sum of its parts: on PostgreSQL, creations at
-- the same time seldom wait for one part.
CREATE TABLE node_loads (
    node_id BLOB    NOT NULL,
    part    INTEGER NOT NULL,
    tunnels INTEGER NOT NULL,
    PRIMARY KEY (node_id, part)
) STRICT;
INSERT INTO node_loads (node_id, part, tunnels) SELECT node_id, 0, COUNT(*) FROM tunnels GROUP BY node_id;

-- The sum of `usage_days` over the tunnels of each scope.
CREATE TABLE usage_of_scopes (
    scope_id  BLOB    NOT NULL REFERENCES scopes (id),
    day       INTEGER NOT NULL,
    bytes_in  INTEGER NOT NULL,
    bytes_out INTEGER NOT NULL,
    PRIMARY KEY (scope_id, day)
) STRICT;
CREATE INDEX usage_of_scopes_by_day ON usage_of_scopes (day);
INSERT INTO usage_of_scopes (scope_id, day, bytes_in, bytes_out)
    SELECT scope_id, day, SUM(bytes_in), SUM(bytes_out) FROM usage_days GROUP BY scope_id, day;
DROP INDEX usage_days_by_scope;

-- When an operation that has not ended has to have gone on; NULL for one that has ended.
ALTER TABLE operations ADD COLUMN due_at INTEGER;
UPDATE operations SET due_at = CASE status WHEN 'queued' THEN expires_at
    ELSE COALESCE(claimed_at, created_at) + CASE action WHEN 'restart_agent' THEN 180000000 ELSE 120000000 END END
    WHERE status IN ('queued', 'claimed', 'running');
CREATE INDEX operations_due ON operations (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX operations_queued ON operations (device_id) WHERE status = 'queued';
CREATE INDEX operations_queued_by_account ON operations (scope_id, account_id) WHERE status = 'queued';
CREATE INDEX operations_handoffs ON operations (handoff_from_device_id)
    WHERE handoff_from_device_id IS NOT NULL AND status IN ('queued', 'claimed', 'running');

CREATE INDEX sessions_due ON sessions (lease_until) WHERE ended_at IS NULL;
CREATE INDEX sessions_open_by_scope ON sessions (scope_id) WHERE ended_at IS NULL;
CREATE INDEX sessions_by_tunnel_and_device ON sessions (tunnel_id, device_id, started_at, id);
CREATE INDEX tunnels_by_name ON tunnels (scope_id, name);
CREATE INDEX device_codes_by_expiry ON device_codes (expires_at);

-- From here on, what each engine says in its own way.

CREATE TRIGGER tunnels_inserted AFTER INSERT ON tunnels BEGIN
    INSERT INTO node_loads (node_id, part, tunnels) VALUES (NEW.node_id, 0, 1)
        ON CONFLICT (node_id, part) DO UPDATE SET tunnels = node_loads.tunnels + 1;
END;
CREATE TRIGGER tunnels_deleted AFTER DELETE ON tunnels BEGIN
    UPDATE node_loads SET tunnels = tunnels - 1 WHERE node_id = OLD.node_id AND part = 0;
END;
CREATE TRIGGER tunnels_moved AFTER UPDATE OF node_id ON tunnels WHEN NEW.node_id <> OLD.node_id BEGIN
    UPDATE node_loads SET tunnels = tunnels - 1 WHERE node_id = OLD.node_id AND part = 0;
    INSERT INTO node_loads (node_id, part, tunnels) VALUES (NEW.node_id, 0, 1)
        ON CONFLICT (node_id, part) DO UPDATE SET tunnels = node_loads.tunnels + 1;
END;
